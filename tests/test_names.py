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
#: What the functions of this package begin with, where that is a verb.
_VERBS = """
    accept add aggregate align allow annotate answer append apply archive ask assemble assert assign attach
    attend audit average await back batch begin bind block bootstrap bound break build cache calculate call
    canonicalize cap carry cast catch center chain change chat check choose chunk claim clamp clean clear
    clip close collapse collate collect combine come compare compile complete compress compute concat
    configure confirm connect consume continue convert copy correct count cover create cut deal decide
    decode deduplicate define delay delete demand derive describe detach detect determine disable discard
    dispatch divide download draw drop dump edit embed emit enable encode end ensure enter enumerate escape
    estimate evaluate examine exclude execute exit expand expect explain export extend extract fail fetch
    fill filter find finish fit fix flag flatten flip flush fold follow force forget format forward freeze
    gather generate get give go grow group guard guess handle has hash hide highlight hold identify ignore
    import index infer init insert inspect install interpolate intersect invoke is isolate iterate join
    judge keep label last launch lay learn leave lift limit link list load locate lock log look lower make
    map mark mask match maybe measure merge move name need neutralize normalize note notify number observe
    offer omit open order overlap pack pad parse part pass patch pause peek permit pick plan play plot pop
    post predict prefer prepare preview price print probe proceed process produce prompt protect prove
    publish pull push put query quote raise rank rate reach read rebuild receive recognize recompute record
    recover redact reduce refer refresh refuse register reject release remember remove rename render repair
    repeat replace reply report request require reread reserve reset reshape resolve respond restore resume
    retry return reverse rewrite roll rotate round route run sample sanitize save say scale scan schedule
    score scrub search seed segment select send separate serialize serve set settle share shift shorten
    should show shrink shuffle shut sign simulate skip slice smooth snap sort speak split spread squeeze
    stack stamp standardize start stop store stream strip style submit substitute subtract suggest sum
    summarize support swap switch tag take talk tell test to tokenize track train transform translate trim
    truncate try tune turn unescape unfold unite unpack unwrap update upload use validate verify visit vote
    wait walk warm warn watch weigh wish withdraw wrap write yield
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
