"""Make a role: script, profile, card, data set."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import AskedForAll, check_missing, estimate_if_dry, make_llm, run_or_estimate
from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import build_next_line, print_json, print_result, print_table, resumable, say
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.foreign import read_text
from rolellm.core.records import Language
from rolellm.core.result import Result
from rolellm.core.sanitize import label
from rolellm.core.settings import Advanced
from rolellm.llm.llm import ModelOptions
from rolellm.making.settings import BuildSettings, SplitRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rolellm.characters.scripts.parse import ParsedScript
    from rolellm.core.records import Profile as Sheet
    from rolellm.core.records import Turn
    from rolellm.making.character import Character
    from rolellm.runs import Run

_SPEAKERS = 15
_EXAMPLES = 5
_LORE = 8
_WIDE = 60
_DIGITS = 10

app = typer.Typer(name="role", help=__doc__, no_args_is_help=True)


@app.command("parse")
@with_options
def run_role_parse(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT")],
    role: str,
    out: Path,
    model_options: ModelOptions,
    call_options: AskedForAll,
    alias: list[str] | None = None,
    format: Literal["play", "screenplay", "transcript", "novel", "subtitles", "table"] | None = None,
    language: Language | None = None,
    encoding: Advanced[str | None] = None,
    columns: Advanced[str | None] = None,
    layout: Advanced[Literal["turns", "release"]] = "turns",
    as_json: AsJson = False,
) -> None:
    """Read a script for one role: who says what, in which scene, and where in the source.

    A novel's text names few of its speakers outright; a model (--llm) finds the rest.

    Args:
        script: A play, screenplay, transcript, chat log, novel, .srt, .ass, .csv or .jsonl.
        role: The role's name.
        out: JSON Lines file for the turns.
        alias: Another name of the role in the script; may be repeated.
        format: Detected by default.
        language: Detected by default.
        encoding: Text encoding, such as gb18030; detected by default.
        columns: A table's columns, such as speaker=name,text=line; usual names are detected.
        layout: release: the layout of RoleBench's profiles.
    """
    from rolellm.characters.scripts.parse import clean_names, read_script, select_role
    from rolellm.characters.scripts.turns import write_turns

    _check_script_out(out, script)
    llm = make_llm(model_options, call_options) if model_options.is_named or call_options.dry_run else None
    names = clean_names(role, alias or [])
    reading = read_script(
        script, names, format=format, language=language, encoding=encoding, columns=_parse_columns(columns)
    )
    parsed = None if llm else select_role(names, reading)
    counts: dict[str, Any] = {}
    if llm is not None:
        from rolellm.making.attribution import Attribute, check_novel

        check_novel(reading)
        run = run_or_estimate(context, Attribute(reading, names), llm, out.with_suffix(".attribution"))
        parsed, _ = run.result
        counts = {**run.summary, "requests": run.asked, "failed": run.failed, "spent": run.manifest["spent"]}
    assert parsed is not None
    named = dict(enumerate(parsed.speakers))
    written = write_turns(out, parsed.turns, parsed.role, speakers=named, layout=layout, language=parsed.language)
    if as_json:
        attribution = {"attribution": counts} if counts else {}
        print_json({"out": str(out), "layout": layout, "rows": written, **parsed.to_dict(), **attribution})
    else:
        _show(parsed, out, counts)
    if counts:
        check_missing(context, call_options, counts["failed"], counts["requests"])


def _check_script_out(out: Path, script: Path) -> None:
    if out.exists() and script.exists() and out.samefile(script):
        raise SettingsError(f"--out {out} is the script itself; name another file")
    if out.is_dir():
        raise SettingsError(f"--out {out} is a folder; name a file in it, such as {out / 'dialogue.jsonl'}")


def _parse_columns(text: str | None) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    if not all(column.strip() and name.strip() for column, _, name in pairs):
        raise SettingsError(f"--set columns={text}: expected pairs such as speaker=name,text=line")
    return {column.strip(): name.strip() for column, _, name in pairs}


def _show(parsed: ParsedScript, out: Path, counts: Mapping[str, Any]) -> None:
    kinds = parsed.to_dict()["turns"]
    score = f"score {parsed.format_scores[parsed.format]:.2f}" if parsed.format_scores else "as named"
    speakers = [f"{name} {count:,}" for name, count in parsed.others.items()]
    if len(speakers) > _SPEAKERS:
        speakers[_SPEAKERS:] = [f"{len(speakers) - _SPEAKERS} more"]
    rows = [
        ("read as", f"{parsed.format} ({score})"),
        ("encoding, language", f"{parsed.encoding}, {parsed.language}"),
        ("scenes", parsed.scenes),
        *kinds.items(),
        (f"{parsed.role}'s", sum(parsed.own.values())),
        *((f"  as {name}", count) for name, count in parsed.own.items()),
        ("other speakers", ", ".join(speakers) or "none"),
        ("speaker not found", len(parsed.unattributed)),
        ("names without words", len(parsed.empty)),
    ]
    say(str(parsed.source.path))
    print_table("Found", ("", "turns"), rows)
    _show_places("Speaker not found", parsed.unattributed)
    _show_places("Empty", parsed.empty)
    if counts:
        outcomes = ", ".join(f"{counts[name]:,} {name}" for name in ("answered", "nobody", "refused", "missing"))
        say(f"{counts['asked']:,} open quotations asked about: {outcomes}.")
        _show_calls(counts["spent"])
    if parsed.spoken_in not in ("en", "zh", None):
        say(f"note: the language is probably {parsed.spoken_in}; prompts exist in English and Chinese only")
    if parsed.format == "novel" and parsed.unattributed and not counts:
        say("A language model can be asked for the others: add --llm FILE.yaml (--dry-run shows the cost).")
    say(f"{sum(kinds.values()):,} turns in {out}")


def _show_places(title: str, turns: Sequence[Turn]) -> None:
    rows = [(label(turn.content or turn.speaker, 70), f"{turn.start:,}–{turn.end:,}") for turn in turns[:_EXAMPLES]]
    if len(turns) > _EXAMPLES:
        rows.append((f"{len(turns) - _EXAMPLES:,} more", ""))
    if rows:
        print_table(title, ("text", "characters"), rows)


def _parse_number(text: str) -> int:
    value = str(text).strip().lower()
    if value != "none" and not (value.isdecimal() and len(value) < _DIGITS):
        raise typer.BadParameter("must be a number from 0 to 20, or none")
    return 0 if value == "none" else int(value)


@app.command("build")
@with_options
def run_role_build(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="D.jsonl|CARD|PROFILE")],
    model_options: ModelOptions,
    call_options: AskedForAll,
    settings: BuildSettings,
    role: str | None = None,
    out: Path | None = None,
    language: Language | None = None,
    script: str | None = None,
    alias: list[str] | None = None,
    catchphrases: Annotated[int, typer.Option(metavar="N|none", parser=_parse_number)] = 3,
    description: Path | None = None,
    overwrite: bool = False,
    as_json: AsJson = False,
) -> None:
    """Make a role's profile: a description, first in the third person, then in the second, and catchphrases.

    Args:
        source: The script's turns, from `rolellm role parse`; a card; or a character's folder.
        role: The role's name in D.jsonl.
        out: Folder for the character; defaults to its own, which a card has next to it.
        language: Detected by default.
        script: Title of the script.
        alias: Another name of the role, to keep out of the description; may be repeated.
        catchphrases: Maximum catchphrases.
        description: A text file with your own description, in the second person.
        overwrite: Replace the character in --out.
    """
    from rolellm.characters.cards.folder import is_card, open_character
    from rolellm.making.profile.build import BuildProfile, build_folder
    from rolellm.making.profile.start import find_title, start_sheet

    if out is not None and out.is_file():
        raise SettingsError(f"--out {out} is a file; a character is a folder")
    names, home = tuple(alias or ()), None
    if source.is_dir() or is_card(source):
        if role is not None or language is not None:
            raise SettingsError(f"--role and --language come from {source}; leave them out")
        start, home = open_character(source, out, make=not call_options.dry_run, overwrite=overwrite)
        more = tuple(name for name in names if name not in start.names)
        start = replace(start, aliases=(*start.aliases, *more), script=script or start.script)
    else:
        if role is None and source.is_file():
            raise SettingsError(f"--role is missing; use a name from {source}")
        if role is not None and out is None:
            raise SettingsError("no folder for the character; add --out PROFILE")
        script = script or find_title(out, source, role) if role and out else script
        start = start_sheet(source, role or "", language=language, aliases=names, script=script)
    settings = replace(settings, catchphrases=catchphrases, description=_read(description))
    step = BuildProfile(start, settings, out or home)
    llm = make_llm(model_options, call_options, required=step.needs_model)
    estimate_if_dry(context, step, llm)
    with resumable(context):
        run = build_folder(step, llm, card=home, overwrite=overwrite)
    if as_json:
        print_json(_summarize_build(run))
    else:
        _show_build(run, start)
    check_missing(context, call_options, run.failed, run.asked)
    if not as_json:
        say(f"Go on with: {build_next_line(context, 'rolellm', 'instruct', str(run.folder.parent))}")


def _summarize_build(run: Run[Sheet]) -> dict[str, Any]:
    folder = run.folder.parent
    names = ("role", "language", "description", "background", "catchphrases", "aliases")
    return {
        "out": str(folder),
        **{name: getattr(run.result, name) for name in names},
        "counts": run.summary["counts"],
        "spent": run.manifest["spent"],
        "notes": run.summary["notes"],
    }


def _show_build(run: Run[Sheet], start: Sheet) -> None:
    from rolellm.making.character import Character

    folder = run.folder.parent
    _show_character(Character.load(folder))
    # What was printed as a defect.
    for note in (note for note in run.summary["notes"] if ", kept with a defect: " not in note):
        say(f"note: {note}")
    if run.asked:
        _show_calls(run.manifest["spent"])
    if start.description and "card" in start.made and "build" not in start.made:
        is_kept = run.result.description == start.description
        way = "kept; --rewrite has a model write one" if is_kept else "replaced; it is still in the folder's card.json"
        say(f"The card's own description was {way}.")


def _show_calls(spent: Mapping[str, Any]) -> None:
    say(f"{spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return read_text(path)
    except DataError as error:
        raise SettingsError(f"--description {path} cannot be read ({error}); give a text file in UTF-8") from error


@app.command("card")
@with_options
def run_role_card(
    source: Annotated[Path, typer.Argument(metavar="PROFILE|CARD")],
    out: Path | None = None,
    language: Language | None = None,
    name: str | None = None,
    spec: Literal["v2", "v3"] | None = None,
    image: Path | None = None,
    overwrite: bool = False,
    as_json: AsJson = False,
) -> None:
    """Show a character, import a character card (V1, V2, V3) into a folder, or write a card.

    Without --out, shows description, catchphrases, dialogue, lore, and which stages are done. Nothing that a card names
    is fetched. A card is written as it was imported, with later changes, or new.

    Args:
        source: A character's folder, or a card: JSON, CHARX, or PNG with a card in it.
        out: A folder to import the card into; or the card to write: .json, .png or .charx.
        language: Language of an imported card; detected by default.
        name: Role name to use instead of the imported card's.
        spec: Version of the card to write; defaults to that of the imported card, else v2; always v3 in a .charx.
        image: PNG to put the card into; defaults to the imported one, or a plain one.
        overwrite: Replace what is at --out.
    """
    from rolellm.making.character import Character

    if out is None:
        print_result(Character.load(source), _show_character, as_json)
    elif source.is_file() and (out.is_dir() or not out.suffix):
        _import_card(source, out, language, name, overwrite=overwrite, as_json=as_json)
    else:
        _export_card(source, out, spec, image, overwrite=overwrite, as_json=as_json)


def _show_character(character: Character) -> None:
    summary = character.to_dict()
    rows = [
        ("language", character.language),
        ("script", label(character.script or "–", _WIDE)),
        ("also called", label(", ".join(character.aliases) or "–", _WIDE)),
        *((name.replace("_", " "), count) for name, count in summary["counts"].items()),
        *((name, state or "not yet") for name, state in summary["stages"].items()),
    ]
    print_table(label(character.role, _WIDE), ("", ""), rows)
    lore = [
        f"{label(item.name or ', '.join(item.keys) or '–', _WIDE // 2)}: {label(item.content, _WIDE)}"
        for item in character.lore[:_LORE]
    ]
    more = [f"and {len(character.lore) - _LORE:,} more"] if len(character.lore) > _LORE else []
    for title, lines in (
        ("Description", [character.description or "none; rolellm role build writes one"]),
        ("Catchphrases", character.catchphrases or ("none",)),
        ("Defects", [f"{field}: {defect}" for field, defects in summary["defects"].items() for defect in defects]),
        ("Lore", [*lore, *more]),
    ):
        if lines:
            say("\n".join([title, *(textwrap.indent(line, "  ") for line in lines)]))


def _import_card(
    card: Path, out: Path, language: Language | None, name: str | None, *, overwrite: bool, as_json: bool
) -> None:
    from rolellm.characters.cards.folder import import_card

    reading = import_card(card, out, role=name, language=language, overwrite=overwrite)
    character = reading.character
    own = sum(turn.kind == "speech" and turn.speaker == character.role for turn in character.turns)
    summary = {
        "role": character.role,
        "language": character.language,
        "spec": character.made["card"]["spec"],
        "aliases": list(character.aliases),
        "description_characters": len(character.description or ""),
        "greetings": len(reading.greetings),
        "example_scenes": len(reading.examples) + len(reading.embedded),
        "turns": len(character.turns),
        "own_turns": own,
        "lore": len(character.lore),
        "notes": list(reading.notes),
        "out": str(out),
    }
    if as_json:
        print_json(summary)
        return
    omitted = ("role", "aliases", "notes", "out")
    rows = [(name.replace("_", " "), value) for name, value in summary.items() if name not in omitted]
    print_table(label(character.role, _WIDE), ("read", "found"), rows)
    for note in reading.notes:
        say(f"note: {note}")
    say(f"The character is in {out}; the card itself is kept there as card.json.")
    say(f"Go on with: {shlex.join(['rolellm', 'role', 'build', str(out)])}")


def _export_card(
    profile: Path, out: Path, spec: Literal["v2", "v3"] | None, image: Path | None, *, overwrite: bool, as_json: bool
) -> None:
    from rolellm.characters.cards.folder import export_card

    exported = export_card(profile, out, spec=spec, picture=image, overwrite=overwrite)
    if as_json:
        picture = None if exported.picture is None else str(exported.picture)
        fields = {name: getattr(exported, name) for name in ("spec", "changed", "notes")}
        print_json({"out": str(out), "chunks": exported.chunks, "picture": picture, **fields})
        return
    inside = f" (PNG {'chunks' if exported.chunks[1:] else 'chunk'} {' and '.join(exported.chunks)})"
    say(f"Wrote a {exported.spec.upper()} card to {out}{inside if exported.chunks else ''}.")
    if exported.changed:
        say(f"Changed since it was imported: {', '.join(exported.changed)}.")
    for note in exported.notes:
        say(f"note: {note}")


@app.command("release")
@with_options
def run_role_release(
    profiles: Annotated[list[Path], typer.Argument(metavar="PROFILE…")],
    out: Path,
    rule: SplitRule,
    overwrite: bool = False,
) -> Result:
    """Write a folder that load_dataset("rolebench", CONFIG, data_dir=OUT) loads, with splits by rule and a manifest.

    Args:
        profiles: Characters' folders, after `instruct` and `respond`.
        out: The folder to write, in the layout of the RoleBench release.
        overwrite: Replace an earlier release in --out.
    """
    from rolellm.making.release import gather, write_release

    return write_release([gather(folder) for folder in profiles], out, rule, overwrite=overwrite)
