"""Names say what things are: few vague ones, functions that begin with a verb, one meaning for each public name."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Names that fit any value, so they name none.
_VAGUE = """
    alone asked begun both called drawn found given given_up held here kept known left made one ones other
    others ours place places rest said seen shown side sides some taken theirs there things told wanted what
    who whole
"""
VAGUE = frozenset(_VAGUE.split())
#: The verbs with which most functions of this package begin.
_VERBS = """
    accept add answer append ask attend build call check choose clean close collect compare compile compute convert
    count describe detect draw drop encode escape estimate explain fill find finish fold format generate get group
    handle has hash is iterate join judge keep lay list load locate make map measure merge name open parse pick
    plan prepare print rank read record render replace request resolve run save say score select share show split
    start stop stream strip summarize take to wait write
"""
VERBS = frozenset(_VERBS.split())
QUESTIONS = frozenset(["What", "Who", "Whether", "Where", "How", "Which", "When", "Of", "As"])
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture(scope="module")
def modules(root: Path) -> dict[str, ast.Module]:
    """Every module of the package, parsed."""
    source = root / "src" / "rolellm"
    return {
        path.relative_to(source).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(source.rglob("*.py"))
    }


def bindings(tree: ast.Module) -> Iterator[str]:
    """Names that are bound: variables, parameters, functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, FUNCTIONS):
            yield node.name


def actions(tree: ast.Module) -> Iterator[str]:
    """Functions and methods, but for properties and special methods."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and not node.name.startswith("__"):
            is_property = any("property" in ast.dump(decorator) for decorator in node.decorator_list)
            yield from [] if is_property else [node.name]


def test_few_names_are_vague(modules: dict[str, ast.Module]) -> None:
    names = [name for tree in modules.values() for name in bindings(tree)]
    vague = [name for name in names if name.strip("_") in VAGUE]
    assert len(vague) <= 0.01 * len(names), f"{len(vague)} of {len(names)}"


def test_functions_begin_with_a_verb(modules: dict[str, ast.Module]) -> None:
    names = [name for tree in modules.values() for name in actions(tree)]
    nouns = [name for name in names if name.strip("_").split("_")[0] not in VERBS]
    assert len(nouns) <= 0.3 * len(names), f"{len(nouns)} of {len(names)} do not"


def test_docstrings_state_and_do_not_ask(modules: dict[str, ast.Module]) -> None:
    kinds = (ast.ClassDef, *FUNCTIONS)
    nodes = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, kinds)]
    openings = [text.split()[0] for node in nodes if (text := ast.get_docstring(node))]
    questions = [word for word in openings if word in QUESTIONS]
    assert len(questions) <= 0.03 * len(openings), f"{len(questions)} of {len(openings)}"


@pytest.mark.parametrize("kind", ["classes", "functions"])
def test_a_name_means_one_thing(kind: str, modules: dict[str, ast.Module]) -> None:
    homes = defaultdict(set)
    for path, tree in modules.items():
        for node in ast.walk(tree) if kind == "classes" else tree.body:
            is_kind = isinstance(node, ast.ClassDef if kind == "classes" else FUNCTIONS)
            if is_kind and (kind == "classes" or not node.name.startswith("_")):
                homes[node.name].add(path)
    # A reward is called by what decides it, whatever else has that name.
    homes["judge"].discard("rewards.py")
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}
