"""A profile in a character's folder: builds it there, with a journal, and takes care of what a person wrote into it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rolellm.construct.asking import Asking
from rolellm.construct.profile.build import (
    SAMPLING,
    build_profile,
    description_problem,
    knowledge_questions,
    result_hash,
)
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.scripts.turns import read_turns
from rolellm.construct.settings import BuildSettings
from rolellm.construct.sheet import DIALOGUE, PROFILE, Sheet, read_sheet, write_sheet
from rolellm.core.errors import DataError, ScriptError, SettingsError
from rolellm.core.files import whole_file, write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language, Turn
from rolellm.core.text import fold, squash
from rolellm.llm.client import Client
from rolellm.llm.model import Answer, Sampling
from rolellm.llm.settings import described
from rolellm.prompts.retrieval import exchanges
from rolellm.rolebench.profiles import is_role
from rolellm.version import __version__

# --- What a model knows of a role by itself, kept for a person to read; the paper has a person check it first


KNOWLEDGE: Final = "knowledge.md"
KNOWLEDGE_ROWS: Final = "knowledge.jsonl"
_HEADS: Final = {
    "en": (
        "What a model says of {role}",
        "Asked without the script, before the profile was made. Nobody has judged these answers: read them. Where they "
        "are wrong, what the model writes of this role rests on the script alone; think of another model, or go on "
        "knowing that.",
        "No answer",
    ),
    "zh": (
        "模型所知的{role}",
        "这些问题是在撰写人物小传之前、不给剧本的情况下提出的。没有人评判过这些回答，请您阅读。若回答有误，模型笔下的这个"
        "角色就只以剧本为据；请考虑换一个模型，或者心中有数地继续。",
        "没有回答",
    ),
}


@dataclass(frozen=True, slots=True)
class Known:
    """A question about a role, and what a model says.

    Attributes:
        question: As it was asked.
        answer: ``None`` where there is none.
        model: Who answered.
        problem: Why there is no answer.
    """

    question: str
    answer: str | None
    model: str | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"question": self.question, "answer": self.answer, "model": self.model, "problem": self.problem}


def ask_knowledge(
    character: Sheet, client: Client, *, script: str | None = None, sampling: Sampling = SAMPLING
) -> list[Known]:
    """Ask a model basic questions about a role, without the script.

    Args:
        character: Whom they ask about.
        client: Asks.
        script: The name of the work, to be given in the questions.
        sampling: How replies are drawn.

    Raises:
        StoppedShortError: As `Client.ask`.
        EndpointError: As `Client.ask`.
    """
    found = []
    for outcome in client.ask(knowledge_questions(character, script, sampling), label="knowledge"):
        question = outcome.request.messages[-1].content
        if isinstance(outcome, Answer):
            found.append(Known(question, outcome.value, outcome.reply.model))
        else:
            found.append(Known(question, None, problem=outcome.reason))
    return found


def write_knowledge(folder: str | Path, character: Sheet, known: Sequence[Known]) -> Path:
    """Write ``knowledge.md``, to be read, and ``knowledge.jsonl``; return the first one's path."""
    target = Path(folder)
    write_jsonl(target / KNOWLEDGE_ROWS, (item.to_dict() for item in known))
    title, lead, nothing = _HEADS[character.language]
    parts = [f"# {_inert(title.format_map({'role': character.role}))}", lead]
    for number, item in enumerate(known, start=1):
        parts.append(f"## {number}. {_inert(item.question)}")
        said = _inert(item.answer) if item.answer is not None else f"{nothing}: {_inert(item.problem or '')}"
        parts.append("\n".join(f"> {line}" for line in said.splitlines()))
        parts += [f"({_inert(item.model)})"] if item.model else []
    with whole_file(target / KNOWLEDGE) as stream:
        stream.write("\n\n".join(parts) + "\n")
    return target / KNOWLEDGE


def _inert(text: str) -> str:
    """Text that does nothing in a terminal or a page."""
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;")


# --- A profile in a character's folder: builds it there, with a journal, and takes care of what a person wrote


BUILD: Final = "build"
MANIFEST: Final = "manifest.json"
_CARDS: Final = ("card.json", "card.png")


@dataclass(frozen=True, slots=True)
class Built:
    """A profile that was built.

    Attributes:
        character: With all that was made.
        folder: Where it is.
        manifest: What ``build/manifest.json`` says.
        knowledge: The file to read, where the model's knowledge was asked for.
        notes: What a user should know.
    """

    character: Sheet
    folder: Path
    manifest: dict[str, Any]
    knowledge: Path | None = None
    notes: tuple[str, ...] = ()


def build_folder(
    start: Sheet,
    folder: str | Path,
    settings: BuildSettings,
    asking: Asking | None = None,
    *,
    card: str | Path | None = None,
    overwrite: bool = False,
) -> Built:
    """Build a profile into a character's folder; replies are kept in its ``build/``.

    Args:
        start: See `build_profile`.
        folder: The character's.
        settings: How.
        asking: Who is asked.
        card: The folder that `start` was read from, where it is another one; its card comes along.
        overwrite: Replace what the folder holds, whoever wrote it.

    Raises:
        SettingsError: When the folder holds another character, or one that was changed by hand.
        RoleLLMError: As `build_profile` and `Client`.
    """
    target, asking = Path(folder), asking or Asking()
    if not overwrite:
        _check(target, start, card)
    known = None
    spent: dict[str, Any] = {}
    if settings.asks:
        with Client(target / BUILD, asking.models, asking.options) as client:
            if settings.check_knowledge:
                answers = ask_knowledge(start, client, script=settings.work, sampling=settings.sampling)
                known = write_knowledge(target, start, answers)
            character = build_profile(start, client, settings, asking.counter)
            spent = client.spent.to_dict()
    else:
        character = build_profile(start, None, settings, asking.counter)
    write_sheet(character, target)
    _bring_card(card, target)
    manifest = {
        "stage": "build",
        "rolellm": __version__,
        "role": character.role,
        "language": character.language,
        "made": dict(character.made),
        "counts": counts(character),
        "models": [described(model) for model in asking.models] if settings.asks else [],
        "spent": spent,
        "files": {name: hash_file(target / name) for name in (PROFILE, DIALOGUE)},
    }
    write_json(target / BUILD / MANIFEST, manifest)
    return Built(character, target, manifest, known, _notes(start, settings))


def counts(character: Sheet) -> dict[str, int]:
    """How much there is of a character: turns, the role's own lines, scenes, dialogue pairs, lore."""
    profile = character.profile()
    return {
        "turns": len(character.turns),
        "own_lines": sum(map(profile.owns, character.turns)),
        "scenes": len({turn.scene for turn in character.turns}),
        "pairs": len(exchanges(profile)),
        "lore": len(character.lore),
        "catchphrases": len(character.catchphrases),
    }


def _check(target: Path, start: Sheet, card: str | Path | None) -> None:
    if not (target / PROFILE).is_file():
        return
    there = read_sheet(target)
    way = "name another folder, or replace it with --overwrite"
    if there.role != start.role:
        raise SettingsError(f"{target} holds another character, {there.role}; {way}")
    build = there.made.get("build")
    if isinstance(build, dict):
        if build.get("result") != result_hash(there):
            raise SettingsError(
                f"the profile in {target} was changed by hand since it was built; {way}, which loses those changes"
            )
    elif card is None or not target.samefile(card):
        raise SettingsError(
            f"{target} holds {there.role} as it was imported or written; complete it with --from {target}, or {way}"
        )


def _bring_card(card: str | Path | None, target: Path) -> None:
    if card is None or Path(card).samefile(target):
        return
    for name in _CARDS:
        if (Path(card) / name).is_file():
            shutil.copyfile(Path(card) / name, target / name)


def _notes(start: Sheet, settings: BuildSettings) -> tuple[str, ...]:
    if settings.description is None:
        return ()
    problem = description_problem(start, settings.description)
    return () if problem is None else (f"the description given {problem}; it is taken as it is",)


# --- What a profile is made from: the turns of a parsed script, as a character of which nothing else is known yet


_NAMED = 8
_SAMPLED = 2000


def start_sheet(
    dialogue: str | Path | Iterable[Turn],
    role: str,
    *,
    language: Language | None = None,
    aliases: Sequence[str] = (),
    script: str | None = None,
) -> Sheet:
    """Make a character of a script's turns.

    Args:
        dialogue: Turns, or a file of them as ``rolellm role parse`` writes it, in either layout.
        role: As the turns have it; failing that, a name with the same letters and digits is taken for it.
        language: By default told by the turns' texts.
        aliases: Other names of the role; those by which the file's speeches of the role go are added.
        script: What the script is called; by default the file's name.

    Raises:
        DataError: For a file that is not there, or a line that is no turn.
        ScriptError: When the role never speaks; names who does.
    """
    source: dict[str, Any] = {}
    if isinstance(dialogue, str | Path):
        path = Path(dialogue)
        if not path.is_file():
            raise DataError("there is no such file; make it with `rolellm role parse SCRIPT --role NAME`", path=path)
        try:
            turns = tuple(read_turns(path, role))
        except DataError as error:
            wanted = "turns were expected, as `rolellm role parse SCRIPT --role NAME` writes them"
            raise DataError(f"{error.problem}; {wanted}", path=error.path, line=error.line) from error
        aliases = [*aliases, *_called(path, role)]
        script = script or path.name
        source = {"file": path.name, "sha256": hash_file(path)}
    else:
        path, turns = None, tuple(turn for turn in dialogue if turn.content)
    speakers = {turn.speaker for turn in turns if turn.kind == "speech"}
    if role not in speakers:
        turns = tuple(replace(turn, speaker=role) if _speaks_as(turn, role) else turn for turn in turns)
    if not any(turn.kind == "speech" and turn.speaker == role for turn in turns):
        raise ScriptError(_silent(turns, role), path=path)
    others = dict.fromkeys(name.strip() for name in aliases)
    return Sheet(
        role=role,
        language=language or detect_language(" ".join(turn.content for turn in turns[:_SAMPLED])),
        turns=turns,
        aliases=tuple(name for name in others if name and fold(name) != fold(role)),
        script=script,
        made={"source": source} if source else {},
    )


def _speaks_as(turn: Turn, role: str) -> bool:
    return turn.kind == "speech" and is_role(turn.speaker, role)


def _called(path: Path, role: str) -> list[str]:
    """What the script calls the role, the commonest name first; the release's layout does not keep that."""
    found = Counter(
        str(value["speaker"])
        for _, value in read_jsonl(path)
        if value.get("kind") == "speech" and isinstance(value.get("speaker"), str) and is_role(value["role"], role)
    )
    return [name for name, _ in found.most_common()]


def _silent(turns: Sequence[Turn], role: str) -> str:
    speakers = Counter(turn.speaker for turn in turns if turn.kind == "speech")
    if not speakers:
        return f"nobody speaks in it, so {role} does not either; parse a script that has speech"
    alike = [name for name in speakers if squash(role) in squash(name)]
    if alike:
        return f"{role} never speaks in it; did you mean --role {alike[0]!r} ({speakers[alike[0]]} speeches)?"
    listed = ", ".join(f"{name} ({count})" for name, count in speakers.most_common(_NAMED))
    more = f" and {len(speakers) - _NAMED} more" if len(speakers) > _NAMED else ""
    return f"{role} never speaks in it; who does: {listed}{more}. Parse the script again for this role, or name another"
