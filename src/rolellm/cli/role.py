"""Make a role: parse its script, build its profile, release its data."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rolellm.cli.llm_options import ALLOWED_MISSING, AllowMissing, AskedModel, language_model, show_estimate
from rolellm.cli.options import AsJson, Profile, from_settings
from rolellm.cli.output import check_missing, next_line, print_json, print_table, resumable, say
from rolellm.construct.settings import BuildSettings, SplitRule
from rolellm.core.errors import SettingsError
from rolellm.core.sanitize import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rolellm.construct.character import Character
    from rolellm.construct.scripts.parse import Parsed
    from rolellm.construct.sheet import Sheet
    from rolellm.core.records import Turn

_SPEAKERS = 15
_EXAMPLES = 5
_LORE = 8
_WIDE = 60
_DIGITS = 10

Language = Annotated[Literal["en", "zh"] | None, typer.Option("--language", help="Detected by default.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the character in --out.")]
app = typer.Typer(
    name="role", help="Make a role: parse its script, build its profile, release its data.", no_args_is_help=True
)


@app.command()
def parse(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A play, screenplay, transcript, novel or .srt.")],
    role: Annotated[str, typer.Option("--role", help="The role's name.")],
    out: Annotated[Path, typer.Option("--out", help="JSON Lines file for the turns.")],
    alias: Annotated[
        list[str] | None, typer.Option("--alias", help="Another name of the role in the script; may be repeated.")
    ] = None,
    format: Annotated[
        Literal["play", "screenplay", "transcript", "novel", "subtitles"] | None,
        typer.Option("--format", help="Detected by default."),
    ] = None,
    language: Language = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Text encoding, such as gb18030; detected by default.")
    ] = None,
    layout: Annotated[
        Literal["turns", "release"],
        typer.Option("--layout", help="release: the layout of RoleBench's profiles."),
    ] = "turns",
    as_json: AsJson = False,
) -> None:
    """Read a script for one role: who says what, in which scene, and where in the source."""
    from rolellm.construct.scripts.parse import parse_script
    from rolellm.construct.scripts.turns import write_turns
    from rolellm.runtime.progress import Progress

    if out.exists() and script.exists() and out.samefile(script):
        raise SettingsError(f"--out {out} is the script itself; name another file")
    if out.is_dir():
        raise SettingsError(f"--out {out} is a folder; name a file in it, such as {out / 'dialogue.jsonl'}")
    with Progress(f"reading {script}", show=not as_json):
        parsed = parse_script(script, role, alias or [], format=format, language=language, encoding=encoding)
        named = dict(enumerate(parsed.speakers))
        written = write_turns(out, parsed.turns, parsed.role, speakers=named, layout=layout, language=parsed.language)
    if as_json:
        print_json({"out": str(out), "layout": layout, "rows": written, **parsed.to_dict()})
    else:
        _show(parsed, out)


def _show(parsed: Parsed, out: Path) -> None:
    kinds = parsed.to_dict()["turns"]
    score = f"score {parsed.format_scores[parsed.format]:.2f}" if parsed.format_scores else "as named"
    rows = [
        ("read as", f"{parsed.format} ({score})"),
        ("encoding, language", f"{parsed.encoding}, {parsed.language}"),
        ("scenes", parsed.scenes),
        *kinds.items(),
        (f"{parsed.role}'s", sum(parsed.own.values())),
        *((f"  as {name}", count) for name, count in parsed.own.items()),
        ("speaker not found", len(parsed.unattributed)),
        ("empty in the script", len(parsed.empty)),
    ]
    say(str(parsed.path))
    print_table("Found", ("", "turns"), rows)
    others = list(parsed.others.items())
    if others:
        more = [(f"{len(others) - _SPEAKERS} more", sum(count for _, count in others[_SPEAKERS:]))]
        shown = [*others[:_SPEAKERS], *(more if len(others) > _SPEAKERS else [])]
        print_table("Other speakers", ("name", "speeches"), shown)
    _show_places("Speaker not found", parsed.unattributed)
    _show_places("Empty", parsed.empty)
    if parsed.proposals:
        proposed = [(item.name, item.turns, item.reason) for item in parsed.proposals]
        print_table(f"May be {parsed.role}, too", ("name", "speeches", "because"), proposed)
        options = " ".join(f"--alias {shlex.quote(item.name)}" for item in parsed.proposals)
        say(f"None of these was merged. To confirm one, add: {options}")
    say(f"{sum(kinds.values()):,} turns in {out}")


def _show_places(title: str, turns: Sequence[Turn]) -> None:
    rows = [(label(turn.content or turn.speaker, 70), f"{turn.start:,}–{turn.end:,}") for turn in turns[:_EXAMPLES]]
    if len(turns) > _EXAMPLES:
        rows.append((f"{len(turns) - _EXAMPLES:,} more", ""))
    if rows:
        print_table(title, ("text", "characters"), rows)


def _number(text: str) -> int:
    value = str(text).strip().lower()
    if value != "none" and not (value.isdecimal() and len(value) < _DIGITS):
        raise typer.BadParameter("must be a number from 0 to 20, or none")
    return 0 if value == "none" else int(value)


@app.command()
@from_settings
def build(
    context: typer.Context,
    asked: AskedModel,
    settings: BuildSettings,
    allow_missing: AllowMissing = ALLOWED_MISSING,
    dialogue: Annotated[
        Path | None,
        typer.Argument(metavar="D.jsonl", help="The script's turns, from `rolellm role parse`.", show_default=False),
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="The role's name in D.jsonl.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the character; defaults to that of --from.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PROFILE", help="A character's folder instead of D.jsonl, such as an imported card's."
        ),
    ] = None,
    language: Language = None,
    script: Annotated[str | None, typer.Option("--script", help="Title of the script.")] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option("--alias", help="Another name of the role, to keep out of the description; may be repeated."),
    ] = None,
    catchphrases: Annotated[
        int, typer.Option("--catchphrases", metavar="N|none", parser=_number, help="Maximum catchphrases.")
    ] = 3,
    description: Annotated[
        Path | None,
        typer.Option("--description", help="A text file with your own description, in the second person."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a role's profile: a description, first in the third person, then in the second, and catchphrases."""
    from rolellm.construct.profile.build import planned_requests
    from rolellm.construct.profile.folder import build_folder
    from rolellm.llm.estimate import Case, Estimate

    settings = replace(settings, catchphrases=catchphrases, description=_read(description), work=script)
    llm = language_model(asked, required=settings.asks)
    folder = out or source
    if folder is None:
        raise SettingsError("no folder for the character; add --out PROFILE")
    if folder.is_file():
        raise SettingsError(f"{'--from' if out is None else '--out'} {folder} is a file; a character is a folder")
    start = _start(dialogue, source, role, language, alias or [], script)
    if llm.dry_run:
        requests = planned_requests(start, settings, llm.counter)
        nothing = Estimate(0, Case(), Case(), Case(), max_attempts=1)
        show_estimate(llm.estimate(requests) if requests else nothing, as_json)
        return
    with resumable(context):
        built = build_folder(start, folder, settings, llm, card=source, overwrite=overwrite)
    spent = built.manifest["spent"]
    if as_json:
        names = ("role", "language", "description", "background", "catchphrases", "aliases")
        print_json(
            {
                "out": str(built.folder),
                **{name: getattr(built.character, name) for name in names},
                "counts": built.manifest["counts"],
                "spent": spent,
                "knowledge": None if built.knowledge is None else str(built.knowledge),
                "notes": built.notes,
            }
        )
    else:
        show(built.folder)
        for note in built.notes:
            say(f"note: {note}")
        if spent:
            say(f"{spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
        if built.knowledge is not None:
            say(f"Read {built.knowledge}: nobody has checked what the model says about the role.")
    if failed := spent.get("failed", 0):
        check_missing(context, failed, len(planned_requests(start, settings, llm.counter)))
    if not as_json:
        say(f"Go on with: {next_line(context, 'rolellm', 'instruct', str(built.folder))}")


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--description {path} cannot be read ({error}); give a text file in UTF-8") from error


def _start(
    dialogue: Path | None,
    source: Path | None,
    role: str | None,
    language: Literal["en", "zh"] | None,
    aliases: list[str],
    script: str | None,
) -> Sheet:
    from rolellm.construct.profile.folder import start_sheet
    from rolellm.construct.sheet import read_sheet

    if (dialogue is None) == (source is None):
        raise SettingsError("give either D.jsonl or --from PROFILE")
    if dialogue is not None:
        if role is None:
            raise SettingsError(f"whose profile? Add --role NAME, as {dialogue} has it")
        return start_sheet(dialogue, role, language=language, aliases=aliases, script=script)
    if role is not None or language is not None:
        raise SettingsError("--role and --language come from the character that --from names; leave them out")
    character = read_sheet(str(source))
    more = tuple(name for name in aliases if name not in character.names)
    return replace(character, aliases=(*character.aliases, *more), script=script or character.script)


@app.command()
def show(profile: Profile, as_json: AsJson = False) -> None:
    """Show a role: its description, catchphrases, dialogue and lore, and which stages are done."""
    from rolellm.construct.character import Character

    character = Character.load(profile)
    if as_json:
        print_json(character.to_dict())
    else:
        _show_character(character)


def _show_character(character: Character) -> None:
    summary = character.to_dict()
    rows = [
        ("language", character.language),
        ("script", label(character.script or "–", _WIDE)),
        ("also called", label(", ".join(character.aliases) or "–", _WIDE)),
        *((name.replace("_", " "), count) for name, count in summary["counts"].items()),
        *((name, found or "not yet") for name, found in summary["stages"].items()),
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
        ("Lore", [*lore, *more]),
    ):
        if lines:
            say("\n".join([title, *(textwrap.indent(line, "  ") for line in lines)]))


@app.command("import-card")
def import_card(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="A card: JSON, or PNG with a card in it.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the character.")],
    language: Language = None,
    name: Annotated[str | None, typer.Option("--name", help="Role name to use instead of the card's.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a character's folder from a character card (V1, V2, V3). Nothing that the card names is fetched."""
    from rolellm.construct.cards.folder import import_card as run

    reading = run(card, out, role=name, language=language, overwrite=overwrite)
    character = reading.character
    own = sum(turn.kind == "speech" and turn.speaker == character.role for turn in character.turns)
    summary = {
        "role": character.role,
        "language": character.language,
        "spec": character.made["card"]["spec"],
        "aliases": list(character.aliases),
        "description_characters": len(character.description or ""),
        "greetings": len(reading.greetings),
        "example_scenes": len(reading.examples),
        "turns": len(character.turns),
        "own_turns": own,
        "lore": len(character.lore),
        "notes": list(reading.notes),
        "out": str(out),
    }
    if as_json:
        print_json(summary)
        return
    told = ("role", "aliases", "notes", "out")
    rows = [(name.replace("_", " "), value) for name, value in summary.items() if name not in told]
    print_table(label(character.role, _WIDE), ("read", "found"), rows)
    for note in reading.notes:
        say(f"note: {note}")
    say(f"The character is in {out}; the card itself is kept there as card.json.")


@app.command("export-card")
def export_card(
    profile: Profile,
    out: Annotated[Path, typer.Option("--out", help="The card to write: .json or .png.")],
    spec: Annotated[
        Literal["v2", "v3"] | None,
        typer.Option("--spec", help="Card version; defaults to that of the imported card, else v2."),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option("--image", help="PNG to put the card into; defaults to the imported one, or a plain one."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file at --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a character as a card: the imported one with later changes, or a new one."""
    from rolellm.construct.cards.folder import export_card as run

    exported = run(profile, out, spec=spec, picture=image, overwrite=overwrite)
    if as_json:
        picture = None if exported.picture is None else str(exported.picture)
        found = {name: getattr(exported, name) for name in ("spec", "changed", "notes")}
        print_json({"out": str(out), "chunks": exported.chunks, "picture": picture, **found})
        return
    inside = f" in its chunks {' and '.join(exported.chunks)}" if exported.chunks else ""
    say(f"Card {exported.spec.upper()} in {out}{inside}.")
    if exported.changed:
        say(f"Changed since it was imported: {', '.join(exported.changed)}.")
    for note in exported.notes:
        say(f"note: {note}")


@app.command()
@from_settings
def release(
    profiles: Annotated[
        list[Path], typer.Argument(metavar="PROFILE…", help="Characters' folders, after `instruct` and `respond`.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write, in the layout of the RoleBench release.")],
    rule: SplitRule,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier release in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a folder that load_dataset("rolebench", CONFIG, data_dir=OUT) loads, with splits by rule and a manifest."""
    from rolellm.construct.release import gather, write_release

    summary = write_release([gather(folder) for folder in profiles], out, rule, overwrite=overwrite)
    if as_json:
        print_json(summary.to_dict())
        return
    print_table(str(out), ["file", "rows"], list(summary.rows.items()))
    for note in summary.notes:
        say(f"note: {note}")
    if summary.held_out:
        say(f"held out for role generalization: {', '.join(summary.held_out)}")
    say(f"Inspect it with: rolellm data stats --data-dir {shlex.quote(str(out))}")
    # As Python takes it: the name "rolebench" is known once rolellm is imported.
    typer.echo("Load it with:\nimport rolellm\nfrom datasets import load_dataset")
    for config in summary.configs:
        typer.echo(f"load_dataset({'rolebench'!r}, {config!r}, data_dir={str(out)!r})")
