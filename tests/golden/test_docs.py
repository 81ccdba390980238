"""The commands of README.md and docs/: each can be given as it stands there, and every option named anywhere exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer.core

import rolellm
from rolellm.cli.app import _COMMANDS

from ..commands import exit_code
from .golden import check

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "dev").glob("*.md")])
#: Options of other programs that the pages name.
_OTHERS = """
    lm_eval and inspect: --apply_chat_template --gen_kwargs --include_path --log_samples --model_args --output_path
        --tasks --log-format --log-dir --model-role --to
    accelerate, trl and typer: --config_file --cpu --multi_gpu --num_processes --reward_funcs
        --help --help-all --version
    vLLM, SGLang and ray: --enable-auto-tool-choice --enable-lora --lora-modules --max-lora-rank --tensor-parallel-size
        --tool-call-parser --head --lora-paths --chat-template
    lighteval: --custom-tasks --output-dir --save-details
    pytest, where the plugin of `rolellm check` adds one: --character-model --cache-clear
"""
OTHERS = set(re.findall(r"--\S+", _OTHERS))
#: What stands for any of several.
_ANY = {"--no-NAME"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def group() -> Any:
    """The command line as its entry point makes it, caught before it reads anything."""
    found: list[Any] = []

    def catch(self: Any, *_: Any, **__: Any) -> None:
        found.append(self)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.core.TyperGroup, "main", catch)
        exit_code("--version")
    return found[0]


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command, by the words that call it."""
    for name in group.list_commands(None) if above else _COMMANDS:
        command = group.get_command(None, name)
        words = f"{above} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, words)
        else:
            yield words, command


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def scripts() -> dict[str, set[str]]:
    """The options of the scripts of this repository, by path."""
    paths = [path for folder in ("recipes", "examples", "benchmarks") for path in (ROOT / folder).glob("*.py")]
    return {
        path.relative_to(ROOT).as_posix(): set(
            re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", path.read_text(encoding="utf-8"))
        )
        for path in paths
    }


def parsed(group: Any, words: list[str]) -> None:
    """Read words as the command line does, and carry nothing out.

    Raises:
        Exception: Of typer, for what it would refuse.
    """
    command, name = group, "rolellm"
    while hasattr(command, "commands"):
        context = command.make_context(name, list(words), resilient_parsing=True)
        context.resilient_parsing = False
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, list(words))


def written(page: Path) -> Iterator[str]:
    """The commands in a page's blocks of code, as one would type them, with what brackets say may be left out."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for kind, block in _FENCE.findall(text) if kind in ("", "bash", "console", "sh")]
    blocks += re.findall(r"(?:^ {4}\S.*\n)+", _FENCE.sub("", text), re.MULTILINE)
    for block in blocks:
        values: dict[str, str] = {}
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if assigned := re.fullmatch(r"([A-Z]+)=(\"?)(.*)\2", line):
                values[assigned[1]] = assigned[3]
            line = re.sub(r"\$([A-Z]+)\b", lambda found, values=values: values.get(found[1], found[0]), line)
            if re.match(r"(rolellm|python \w+/|accelerate launch) ?", line):
                yield re.sub(r" \[(--[^\]]+)\]", r" \1", re.sub(r"(?<=\w)\|[\w.|]+", "", line))


GIVEN = [pytest.param(line, id=f"{page.name}: {line[:60]}") for page in PAGES for line in written(page)]


def test_the_pages_have_commands() -> None:
    assert len(GIVEN) > 60


@pytest.mark.parametrize("line", GIVEN)
def test_a_command_of_the_docs_can_be_given(line: str, group: Any) -> None:
    reader = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    reader.whitespace_split = True
    words = []
    for word in reader:
        if set(word) <= set(";|&<>"):
            break
        words.append(word)
    if words[0] == "rolellm":
        parsed(group, words[1:])
        return
    (script,) = [word for word in words if word.endswith(".py")]
    known = scripts()[script]
    after = words[words.index(script) + 1 :]
    assert {word.partition("=")[0] for word in after if word.startswith("--")} <= known


_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in [*PAGES, ROOT / "CONTRIBUTING.md"]])
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for path, anchor in _LINK.findall(text):
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_the_pages_are_those_of_the_site() -> None:
    """Eleven pages for users, and the reference with every public name."""
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r"[\w]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))) == pages
    assert len(pages) == 12
    named = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text("utf-8"), re.MULTILINE))
    assert {place.replace(":", ".") for place in rolellm._NAMES.values()} <= named


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_every_option_that_a_page_names_exists(page: Path, group: Any) -> None:
    text = page.read_text(encoding="utf-8")
    known = OTHERS.union(*(options(command) for _, command in commands(group)), *scripts().values())
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - known - _ANY == set()


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_every_command_that_a_sentence_names_has_its_options(page: Path, group: Any) -> None:
    named = dict(commands(group))
    wrong = []
    for found in re.findall(r"`rolellm ([^`]+)`", _FENCE.sub("", page.read_text(encoding="utf-8"))):
        words = found.split()
        name = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in named), None)
        groups = {one.split()[0] for one in named if " " in one}
        if name is None:
            wrong += [] if words[0] in groups or words[0].startswith("-") else [found]
        else:
            wrong += [found for word in words if word.startswith("--") and word not in options(named[name])]
    assert wrong == []


def test_every_option_is_as_it_was(group: Any) -> None:
    """Names, kinds, bounds and defaults; not the help, which may be put better."""
    found = {}
    for name, command in commands(group):
        found[name] = {_spelled(parameter, at): _about(parameter) for at, parameter in enumerate(command.params)}
    check("options", "options", found)


def _spelled(parameter: Any, place: int) -> str:
    spelled = [*parameter.opts, *parameter.secondary_opts]
    return " ".join(spelled) if spelled[0].startswith("-") else f"word {place}"


def _about(parameter: Any) -> str:
    """Such as ``high|medium|low = medium``."""
    kind = parameter.type_descriptor.annotation
    words = ["|".join(map(str, get_args(kind)))] if get_origin(kind) is Literal else []
    words += [f"{name} {value}" for name in ("min", "max") if (value := getattr(parameter, name)) is not None]
    words += ["repeated"] if get_origin(kind) is list else []
    words += ["required" if parameter.required else f"= {parameter.default}"]
    return " ".join(words)
