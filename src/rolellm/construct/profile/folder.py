"""Building a profile in a character's folder, without losing what a person wrote there into it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rolellm.construct.profile.build import build_profile, knowledge_questions, result_hash
from rolellm.construct.profile.portrait import own_defects
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.scripts.turns import read_turns
from rolellm.construct.settings import BuildSettings
from rolellm.construct.sheet import DIALOGUE, PROFILE, Sheet, read_sheet, write_sheet
from rolellm.core.errors import DataError, ScriptError, SettingsError
from rolellm.core.files import whole_file, write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language, Turn
from rolellm.core.text import fold, listed, squash
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer
from rolellm.llm.settings import described
from rolellm.prompts.retrieval import exchanges
from rolellm.rolebench.profiles import is_role
from rolellm.version import __version__

KNOWLEDGE: Final = "knowledge.md"
KNOWLEDGE_ROWS: Final = "knowledge.jsonl"
_HEADS: Final = {
    "en": (
        "What a model says of {role}",
        "Asked without the script, before the profile was made. Nobody has checked these answers: read them. "
        "Where they are wrong, what the model writes about this role rests on the script "
        "alone; consider another model, or go on with that in mind.",
        "No answer",
    ),
    "zh": (
        "模型所知的{role}",
        "这些问题是在撰写人物小传之前、不给剧本的情况下提出的。没有人评判过这些回答，请您阅读。若回答有误，模型笔下的这个"
        "角色就只以剧本为据；请考虑换一个模型，或者心中有数地继续。",
        "没有回答",
    ),
}


def write_knowledge(folder: Path, character: Sheet, client: Client, settings: BuildSettings) -> Path:
    """Ask a model basic questions about a role without the script, and write what it says for a person to read.

    Returns:
        The path of ``knowledge.md``; ``knowledge.jsonl`` next to it has the same as rows.
    """
    title, lead, nothing = _HEADS[character.language]
    parts, rows = [f"# {_inert(title.format_map({'role': character.role}))}", lead], []
    asked = knowledge_questions(character, settings.work, settings.sampling)
    for number, outcome in enumerate(client.ask(asked, label="knowledge"), start=1):
        question = outcome.request.messages[-1].content
        row = {"question": question, "answer": None, "model": None, "problem": None}
        if isinstance(outcome, Answer):
            row |= {"answer": outcome.value, "model": outcome.reply.model}
            said, by = outcome.value, [f"({_inert(outcome.reply.model)})"]
        else:
            row["problem"] = outcome.reason
            said, by = f"{nothing}: {outcome.reason}", []
        rows.append(row)
        quoted = "\n".join(f"> {line}" for line in _inert(said).splitlines())
        parts += [f"## {number}. {_inert(question)}", quoted, *by]
    write_jsonl(folder / KNOWLEDGE_ROWS, rows)
    with whole_file(folder / KNOWLEDGE) as stream:
        stream.write("\n\n".join(parts) + "\n")
    return folder / KNOWLEDGE


def _inert(text: str) -> str:
    """Text that does nothing in a terminal or a page."""
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;")


BUILD: Final = "build"
MANIFEST: Final = "manifest.json"
#: The fields of a profile, by the step that writes them.
_FIELDS: Final = {"third": "background", "second": "description", "catchphrases": "catchphrases"}
_CARDS: Final = ("card.json", "card.png", "card.charx")


@dataclass(frozen=True, slots=True)
class Built:
    """A profile that was built.

    Attributes:
        character: With all that was made.
        folder: Where it is.
        manifest: What ``build/manifest.json`` says.
        knowledge: The file to read, where the model's knowledge was asked for.
        notes: Notes for the user.
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
    llm: LLM | None = None,
    *,
    card: str | Path | None = None,
    overwrite: bool = False,
) -> Built:
    """Build a profile into a character's folder; replies are kept in its ``build/``.

    Args:
        start: See `build_profile`.
        folder: The character's.
        settings: How.
        llm: Who is asked; not needed where the settings ask nothing.
        card: The folder that `start` was read from, where it is another one; its card comes along.
        overwrite: Replace what the folder holds, whoever wrote it.

    Raises:
        SettingsError: When the folder holds another character, or one that was changed by hand.
        RoleLLMError: As `build_profile` and `Client`.
    """
    target = Path(folder)
    if not overwrite:
        _check(target, start, card)
    known = None
    spent: dict[str, Any] = {}
    if not settings.asks:
        character = build_profile(start, None, settings)
    elif llm is None:
        raise SettingsError("a model is needed to build this profile, and none is named; pass llm=…")
    else:
        with Client(target / BUILD, llm.models, llm.options) as client:
            if settings.check_knowledge:
                known = write_knowledge(target, start, client, settings)
            character = build_profile(start, client, settings, llm.counter)
            spent = client.spent.to_dict()
    write_sheet(character, target)
    for name in _CARDS if card is not None and not target.samefile(card) else ():
        if (Path(card or "") / name).is_file():
            shutil.copyfile(Path(card or "") / name, target / name)
    receipt: dict[str, Any] = character.made["build"]
    own = own_defects(start, settings.description) if settings.description else []
    manifest = {
        "stage": "build",
        "rolellm": __version__,
        "role": character.role,
        "language": character.language,
        "made": dict(character.made),
        "counts": counts(character),
        "models": [described(model) for model in llm.models] if llm and settings.asks else [],
        "spent": spent,
        "files": {name: hash_file(target / name) for name in (PROFILE, DIALOGUE)},
    }
    write_json(target / BUILD / MANIFEST, manifest)
    notes = (
        *(f"your description is used as it is: {defect}" for defect in own),
        *(f"{_FIELDS[what]}: {note}" for what, found in receipt["mended"].items() for note in found),
        *(f"{what}, kept with a defect: {defect}" for what, found in defects(character).items() for defect in found),
    )
    return Built(character, target, manifest, known, notes)


def defects(character: Sheet) -> dict[str, list[str]]:
    """What is wrong with what a model wrote of a character, by field; nothing once a person has changed it."""
    build = character.made.get("build")
    if not isinstance(build, Mapping) or build.get("result") != result_hash(character):
        return {}
    found = build.get("defects")
    noted = ((field, found.get(what)) for what, field in _FIELDS.items()) if isinstance(found, Mapping) else ()
    return {field: list(map(str, said)) for field, said in noted if isinstance(said, list) and said}


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


def known_title(folder: str | Path, dialogue: str | Path, role: str) -> str | None:
    """The title that a character's folder has for its script, where it was built from this dialogue before."""
    if not (Path(folder) / PROFILE).is_file():
        return None
    there = read_sheet(folder)
    source = there.made.get("source")
    same = isinstance(source, Mapping) and source.get("file") == Path(dialogue).name and there.role == role
    return there.script if same else None


def _check(target: Path, start: Sheet, card: str | Path | None) -> None:
    if not (target / PROFILE).is_file():
        return
    there = read_sheet(target)
    way = "name another folder, or replace it (--overwrite, or overwrite=True in Python)"
    if there.role != start.role:
        raise SettingsError(f"{target} holds another character, {there.role}; {way}")
    build = there.made.get("build")
    if isinstance(build, dict):
        if build.get("result") != result_hash(there):
            raise SettingsError(
                f"the profile in {target} was changed by hand since it was built; {way} (those changes are then lost)"
            )
    elif card is None or not target.samefile(card):
        raise SettingsError(
            f"{target} holds {there.role} as imported or written; complete it with --from {target}, or {way}"
        )


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
        language: Detected by default.
        aliases: Other names of the role; those by which the file's speeches of the role go are added.
        script: What the script is called; by default the file's name.

    Raises:
        DataError: For a missing file, or a line that is not a turn.
        ScriptError: When the role never speaks; names who does.
    """
    source: dict[str, Any] = {}
    if isinstance(dialogue, str | Path):
        path = Path(dialogue)
        if not path.is_file():
            raise DataError("no such file; make it with `rolellm role parse SCRIPT --role NAME`", path=path)
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
        turns = tuple(
            replace(turn, speaker=role) if turn.kind == "speech" and is_role(turn.speaker, role) else turn
            for turn in turns
        )
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
        return f"nobody speaks in it, including {role}; parse a script that has speech"
    alike = [name for name in speakers if squash(role) in squash(name)]
    if alike:
        return f"{role} never speaks in it; did you mean --role {alike[0]!r} ({speakers[alike[0]]} speeches)?"
    found = listed((f"{name} ({count})" for name, count in speakers.most_common()), _NAMED)
    return f"{role} never speaks in it; who does: {found}. Parse the script again for this role, or name another"
