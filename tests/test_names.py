"""Names: public ones are kept, vague ones are few, no code is foreign, and what others published is pinned."""

import ast
import io
import json
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import rolellm
import rolellm.evaluation
from rolellm.core.errors import RoleLLMError
from rolellm.llm.tokens import TokenCounter
from rolellm.models.load import load_whole, open_tokenizer
from rolellm.models.local_model import LocalModel
from rolellm.training.bases import load_tokenizer, read_base_config
from rolellm.training.recipe import BaseRecipe, Recipe

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


FRONT_DOOR = [
    *("Character", "LLM", "RoleLLMError", "RolePlayer", "__version__", "certify", "check", "eval", "export"),
    *("generate", "improve", "judge", "load_rolebench", "make", "play_scene", "push", "report", "rewards"),
    *("rouge_l", "score", "share_prefixes", "style", "train"),
]


def test_public_names():
    assert sorted(rolellm.__all__) == FRONT_DOOR
    assert len(FRONT_DOOR) <= 25
    assert dir(rolellm) == FRONT_DOOR
    assert rolellm.evaluation.__all__ == ["RougeScore", "rouge_l"]
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rolellm.trian


@pytest.mark.parametrize("name", FRONT_DOOR)
def test_each_name_is_what_it_says(name):
    assert isinstance(getattr(rolellm, name), {"__version__": str, "rewards": ModuleType}.get(name, Callable))


def test_import_and_help_stay_light():
    """The times are measured by benchmarks/load.py; here, what would make them long is kept out."""
    heavy = ("torch", "transformers", "trl", "peft", "openai", "datasets", "pyarrow", "numpy", "rjieba", "matplotlib")
    code = f"""
import sys, rolellm, rolellm.cli.app
print([name for name in {heavy!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_version_option():
    shown = subprocess.run([sys.executable, "-m", "rolellm", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == rolellm.__version__


LOADERS = {"from_pretrained", "from_config"}


def unguarded(source: str) -> list[str]:
    """The calls that load from a model's folder without ``trust_remote_code=False``, but for those that run none."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOADERS):
            continue
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if (
            ast.unparse(call.func.value) not in ("PeftModel", "PeftConfig", "GenerationConfig")
            and given.get("trust_remote_code") != "False"
        ):
            found.append(ast.unparse(call))
    return found


def test_each_call_that_loads_says_that_no_code_is_run(root: Path) -> None:
    folders = ("src", "recipes", "examples", "benchmarks", "evaluate_metrics", "dataset_scripts")
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    texts = {str(file): file.read_text(encoding="utf-8") for file in files}
    assert sum("from_pretrained(" in text for text in texts.values()) >= 5
    assert {file: calls for file, text in texts.items() if (calls := unguarded(text))} == {}


@pytest.fixture
def trap(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Path]]:
    """A copy of a model with code of its own, which leaves a mark; standard input says yes to everything."""

    def lay(kind: str) -> tuple[Path, Path]:
        folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
        mark = tmp_path / "mark"
        (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass C: pass\n", encoding="utf-8")
        for name, parts in (
            ("config.json", {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.C"}),
            ("tokenizer_config.json", {"AutoTokenizer": ["own.C", "own.C"]}),
        ):
            content = json.loads((folder / name).read_text(encoding="utf-8")) | {"auto_map": parts}
            if name == "config.json":
                content["model_type"] = kind
            else:
                content["tokenizer_class"] = "OwnTokenizer"
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 50))
        return folder, mark

    return lay


@pytest.mark.filterwarnings("ignore:You are using a model of type")
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda folder: read_base_config(replace(Recipe(), base=BaseRecipe(path=folder))), id="config"),
        pytest.param(load_tokenizer, id="tokenizer"),
        pytest.param(load_whole, id="weights"),
        pytest.param(open_tokenizer, id="published"),
        pytest.param(lambda folder: LocalModel(str(folder)), id="inference"),
        pytest.param(lambda folder: TokenCounter(folder), id="counting"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("own", "Python code that comes with it, which is never run here; use a checkpoint", id="unknown"),
        pytest.param("chatglm", "convert it: `rolellm data convert-chatglm", id="chatglm"),
    ],
)
def test_code_in_a_folder_is_refused_and_not_run(
    load: Callable[[Path], Any], kind: str, words: str, trap: Callable[..., tuple[Path, Path]]
) -> None:
    folder, mark = trap(kind)
    with pytest.raises(RoleLLMError) as caught:
        load(folder)
    assert not mark.exists()
    if "staged" not in str(caught.value) or kind == "own":
        assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


ROOT = Path(__file__).parent.parent
PINS = tomllib.loads((ROOT / "tests" / "published_pins.toml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: These need an environment of their own.
APART = {"llamafactory": {"peft", "transformers", "trl"}}


def list_needs() -> Iterator[tuple[str, SpecifierSet]]:
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *extras["train"], *extras["llm"]):
        requirement = Requirement(text)
        yield canonicalize_name(requirement.name), requirement.specifier


def can_meet(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Tell whether a version satisfies both, among those that they name and the ones right after."""
    for specifier in (*first, *second):
        named = Version(specifier.version.removesuffix(".*"))
        following = Version(f"{named.major}.{named.minor}.{named.micro + 1}")
        if any(first.contains(version) and second.contains(version) for version in (named, following)):
            return True
    return False


@pytest.mark.parametrize("name", [name for name in PINS if name != "date"])
def test_one_environment_holds_both_or_the_docs_name_two(name: str) -> None:
    pins = {package: SpecifierSet(text) for package, text in PINS[name].items() if package != "version"}
    assert pins
    apart = {package for package, needed in list_needs() if package in pins and not can_meet(pins[package], needed)}
    assert apart == APART.get(name, set())
    if apart:
        page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
        assert f"`{name}` {PINS[name]['version']}" in page.partition("## Training elsewhere")[2]
