"""Make a role: parse its script, build its profile, release its data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import ALLOWED_MISSING, LLM, AllowMissing, show_estimate, takes_llm
from rolellm.cli.options import from_settings
from rolellm.construct.settings import BuildSettings, SplitRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rolellm.construct.character import Character
    from rolellm.construct.profile.folder import Built
    from rolellm.construct.scripts.parse import Parsed
    from rolellm.construct.sheet import Sheet
    from rolellm.core.records import Turn
    from rolellm.llm.estimate import Estimate

_SPEAKERS = 15
_EXAMPLES = 5


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
    language: Annotated[Literal["en", "zh"] | None, typer.Option("--language", help="Detected by default.")] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Text encoding, such as gb18030; detected by default.")
    ] = None,
    layout: Annotated[
        Literal["turns", "release"],
        typer.Option("--layout", help="release: the layout of RoleBench's profiles."),
    ] = "turns",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Read a script for one role: who says what, in which scene, and where in the source."""
    from rolellm.construct.scripts.parse import parse_script
    from rolellm.construct.scripts.turns import write_turns
    from rolellm.core.errors import SettingsError
    from rolellm.runtime.progress import Progress

    if out.exists() and script.exists() and out.samefile(script):
        raise SettingsError(f"--out {out} is the script itself; name another file")
    if out.is_dir():
        raise SettingsError(f"--out {out} is a folder; name a file in it, such as {out / 'dialogue.jsonl'}")
    with Progress(f"reading {script}", show=not as_json):
        parsed = parse_script(script, role, alias or [], format=format, language=language, encoding=encoding)
        written = write_turns(
            out,
            parsed.turns,
            parsed.role,
            speakers=dict(enumerate(parsed.speakers)),
            layout=layout,
            language=parsed.language,
        )
    if as_json:
        from rolellm.cli.output import print_json

        print_json({"out": str(out), "layout": layout, "rows": written, **parsed.to_dict()})
        return
    _show(parsed, out)


def _show(parsed: Parsed, out: Path) -> None:
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import visible

    summary = parsed.to_dict()
    kinds = summary["turns"]
    rows = [
        ("read as", _how_read(parsed)),
        ("encoding, language", f"{parsed.encoding}, {parsed.language}"),
        ("scenes", f"{parsed.scenes:,}"),
        *((kind, f"{count:,}") for kind, count in kinds.items()),
        (f"{parsed.role}'s", f"{sum(parsed.own.values()):,}"),
        *((f"  as {name}", f"{count:,}") for name, count in parsed.own.items()),
        ("speaker not found", f"{len(parsed.unattributed):,}"),
        ("empty in the script", f"{len(parsed.empty):,}"),
    ]
    typer.echo(visible(f"{parsed.path}"))
    print_table("Found", ("", "turns"), _visible(rows))
    others = list(parsed.others.items())
    if others:
        rest = sum(count for _, count in others[_SPEAKERS:])
        listed = [(name, f"{count:,}") for name, count in others[:_SPEAKERS]]
        more = [(f"{len(others) - _SPEAKERS} more", f"{rest:,}")] if rest else []
        print_table("Other speakers", ("name", "speeches"), _visible([*listed, *more]))
    _show_places("Speaker not found", parsed.unattributed)
    _show_places("Empty", parsed.empty)
    if parsed.proposals:
        proposed = [(item.name, f"{item.turns:,}", item.reason) for item in parsed.proposals]
        print_table(f"May be {visible(parsed.role)}, too", ("name", "speeches", "because"), _visible(proposed))
        options = " ".join(_option(item.name) for item in parsed.proposals)
        typer.echo(f"None of these was merged. To confirm one, add: {visible(options)}")
    typer.echo(f"{sum(kinds.values()):,} turns in {visible(str(out))}")


def _how_read(parsed: Parsed) -> str:
    if not parsed.format_scores:
        return f"{parsed.format} (as named)"
    return f"{parsed.format} (score {parsed.format_scores[parsed.format]:.2f})"


def _show_places(title: str, turns: tuple[Turn, ...]) -> None:
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import label

    if not turns:
        return
    rows = [(label(turn.content or turn.speaker, 70), f"{turn.start:,}–{turn.end:,}") for turn in turns[:_EXAMPLES]]
    if len(turns) > _EXAMPLES:
        rows.append((f"{len(turns) - _EXAMPLES:,} more", ""))
    print_table(title, ("text", "characters"), rows)


def _option(name: str) -> str:
    import shlex

    return f"--alias {shlex.quote(name)}"


def _visible(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    from rolellm.core.sanitize import visible

    return [tuple(visible(cell) for cell in row) for row in rows]


# --- build


_WIDE = 60
_DIGITS = 10

Dialogue = Annotated[
    Path | None,
    typer.Argument(metavar="D.jsonl", help="The script's turns, from `rolellm role parse`.", show_default=False),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the character; defaults to that of --from.")]
Role = Annotated[str | None, typer.Option("--role", help="The role's name in D.jsonl.")]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="PROFILE", help="A character's folder instead of D.jsonl, such as an imported card's."
    ),
]
Language = Annotated[Literal["en", "zh"] | None, typer.Option("--language", help="Detected by default.")]
Script = Annotated[str | None, typer.Option("--script", help="Title of the script.")]
Alias = Annotated[
    list[str] | None,
    typer.Option("--alias", help="Another name of the role, to keep out of the description; may be repeated."),
]
Catchphrases = Annotated[str, typer.Option("--catchphrases", metavar="N|none", help="Maximum catchphrases.")]
Description = Annotated[
    Path | None,
    typer.Option("--description", help="A text file with your own description, in the second person."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the character in --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _asks_nobody(options: Mapping[str, Any]) -> bool:
    without = options["catchphrases"].strip().lower() in ("none", "0") or options["picked_by"] == "count"
    return options["description"] is not None and without and not options["check_knowledge"]


@partial(takes_llm, unless=_asks_nobody)
@from_settings
def build(
    context: typer.Context,
    llm: LLM,
    settings: BuildSettings,
    allow_missing: AllowMissing = ALLOWED_MISSING,
    dialogue: Dialogue = None,
    role: Role = None,
    out: Out = None,
    source: From = None,
    language: Language = None,
    script: Script = None,
    alias: Alias = None,
    catchphrases: Catchphrases = "3",
    description: Description = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a role's profile: a description, first in the third person, then in the second, and catchphrases."""
    from rolellm.cli.output import check_missing, next_line, resumable
    from rolellm.construct.profile.build import planned_requests
    from rolellm.construct.profile.folder import build_folder
    from rolellm.core.sanitize import visible

    settings = replace(settings, catchphrases=_number(catchphrases), description=_read(description), work=script)
    folder = _folder(out, source)
    start = _start(dialogue, source, role, language, alias or [], script)
    if llm.dry_run:
        requests = planned_requests(start, settings, llm.counter)
        show_estimate(llm.estimate(requests) if requests else _nothing(), as_json)
        return
    with resumable(context):
        built = build_folder(start, folder, settings, llm, card=source, overwrite=overwrite)
    if as_json:
        _print(built)
    else:
        _build_show(built)
    if failed := built.manifest["spent"].get("failed", 0):
        check_missing(context, failed, len(planned_requests(start, settings, llm.counter)))
    if not as_json:
        typer.echo(f"Go on with: {visible(next_line(context, 'rolellm', 'instruct', str(built.folder)))}")


def _nothing() -> Estimate:
    from rolellm.llm.estimate import Case, Estimate

    return Estimate(0, Case(), Case(), Case(), max_attempts=1)


def _number(text: str) -> int:
    from rolellm.core.errors import SettingsError

    value = text.strip().lower()
    if value == "none":
        return 0
    if not (value.isascii() and value.isdigit() and len(value) < _DIGITS):
        raise SettingsError(f"--catchphrases {text!r:.60} must be a number from 0 to 20, or none")
    return int(value)


def _read(path: Path | None) -> str | None:
    from rolellm.core.errors import SettingsError

    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--description {path} cannot be read ({error}); give a text file in UTF-8") from error


def _folder(out: Path | None, source: Path | None) -> Path:
    from rolellm.core.errors import SettingsError

    folder = out or source
    if folder is None:
        raise SettingsError("no folder for the character; add --out PROFILE")
    if folder.exists() and not folder.is_dir():
        option = "--from" if out is None else "--out"
        raise SettingsError(f"{option} {folder} is a file; a character is a folder")
    return folder


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
    from rolellm.core.errors import SettingsError

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


def _print(built: Built) -> None:
    from rolellm.cli.output import print_json

    character = built.character
    print_json(
        {
            "out": str(built.folder),
            "role": character.role,
            "language": character.language,
            "description": character.description,
            "background": character.background,
            "catchphrases": list(character.catchphrases),
            "aliases": list(character.aliases),
            "counts": built.manifest["counts"],
            "spent": built.manifest["spent"],
            "knowledge": None if built.knowledge is None else str(built.knowledge),
            "notes": list(built.notes),
        }
    )


def _build_show(built: Built) -> None:
    from rolellm.construct.character import Character
    from rolellm.core.sanitize import visible

    show_character(Character.load(built.folder))
    for note in built.notes:
        typer.echo(f"note: {visible(note)}")
    spent = built.manifest["spent"]
    if spent:
        typer.echo(f"{spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
    if built.knowledge is not None:
        typer.echo(f"Read {visible(str(built.knowledge))}: nobody has checked what the model says about the role.")


# --- show


_LORE = 8


def show(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A character's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show a role: its description, catchphrases, dialogue and lore, and which stages are done."""
    from rolellm.construct.character import Character

    character = Character.load(profile)
    if as_json:
        from rolellm.cli.output import print_json

        print_json(character.to_dict())
        return
    show_character(character)


def show_character(character: Character) -> None:
    """Print a character for a person to read; text of models and scripts does nothing to the terminal."""
    from rich.padding import Padding
    from rich.text import Text

    from rolellm.cli.output import console, print_table
    from rolellm.core.sanitize import label, visible

    summary = character.to_dict()
    counts = summary["counts"]
    rows = [
        ("language", character.language),
        ("script", label(character.script or "–", _WIDE)),
        ("also called", label(", ".join(character.aliases) or "–", _WIDE)),
        ("turns; scenes", f"{counts['turns']:,}; {counts['scenes']:,}"),
        ("own lines", f"{counts['own_lines']:,}"),
        ("dialogue pairs", f"{counts['pairs']:,}"),
        ("lore", f"{counts['lore']:,}"),
        *((name, found or "not yet") for name, found in summary["stages"].items()),
    ]
    print_table(label(character.role, _WIDE), ("", ""), rows)
    screen = console()
    screen.print(Text("Description"), style="bold")
    described = visible(character.description) if character.description else "none; rolellm role build writes one"
    screen.print(Padding(Text(described), (0, 0, 0, 2)))
    screen.print(Text("Catchphrases"), style="bold")
    for phrase in character.catchphrases or ("none",):
        screen.print(Padding(Text(visible(phrase)), (0, 0, 0, 2)))
    if character.lore:
        screen.print(Text("Lore"), style="bold")
    for item in character.lore[:_LORE]:
        name = item.name or ", ".join(item.keys) or "–"
        screen.print(Padding(Text(f"{label(name, _WIDE // 2)}: {label(item.content, _WIDE)}"), (0, 0, 0, 2)))
    if len(character.lore) > _LORE:
        screen.print(Padding(Text(f"and {len(character.lore) - _LORE:,} more"), (0, 0, 0, 2)))


# --- import-card and export-card


def import_card(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="A card: JSON, or PNG with a card in it.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the character.")],
    language: Annotated[Literal["en", "zh"] | None, typer.Option("--language", help="Detected by default.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Role name to use instead of the card's.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the character in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Make a character's folder from a character card (V1, V2, V3). Nothing that the card names is fetched."""
    from rolellm.cli.output import print_json, print_table
    from rolellm.construct.cards.folder import import_card as run
    from rolellm.core.sanitize import label, visible

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
    rows = [
        ("card", f"{summary['spec']}, {character.language}"),
        ("description", f"{summary['description_characters']:,} characters"),
        ("greetings", f"{summary['greetings']:,}"),
        ("scenes of example talk", f"{summary['example_scenes']:,}"),
        ("turns; the role's own", f"{summary['turns']:,}; {own:,}"),
        ("entries of lore", f"{summary['lore']:,}"),
    ]
    print_table(label(character.role, 60), ("read", "found"), rows)
    for note in reading.notes:
        typer.echo(f"note: {visible(note)}")
    typer.echo(f"The character is in {visible(str(out))}; the card itself is kept there as card.json.")


def export_card(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A character's folder.")],
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write a character as a card: the imported one with later changes, or a new one."""
    from rolellm.cli.output import print_json
    from rolellm.construct.cards.folder import export_card as run
    from rolellm.core.sanitize import visible

    written = run(profile, out, spec=spec, picture=image, overwrite=overwrite)
    exported = written.exported
    if as_json:
        picture = None if written.picture is None else str(written.picture)
        chunks, changed, notes = list(written.chunks), list(exported.changed), list(exported.notes)
        print_json(
            {
                "out": str(out),
                "spec": exported.spec,
                "chunks": chunks,
                "picture": picture,
                "changed": changed,
                "notes": notes,
            }
        )
        return
    inside = f" in its chunks {' and '.join(written.chunks)}" if written.chunks else ""
    typer.echo(f"Card {exported.spec.upper()} in {visible(str(out))}{inside}.")
    if exported.changed:
        typer.echo(f"Changed since it was imported: {', '.join(exported.changed)}.")
    for note in exported.notes:
        typer.echo(f"note: {visible(note)}")


# --- release


@from_settings
def release(
    profiles: Annotated[
        list[Path], typer.Argument(metavar="PROFILE…", help="Characters' folders, after `instruct` and `respond`.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write, in the layout of the RoleBench release.")],
    rule: SplitRule,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier release in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write a folder that load_dataset("rolebench", CONFIG, data_dir=OUT) loads, with splits by rule and a manifest."""
    from rolellm.construct.release import gather, write_release

    summary = write_release([gather(folder) for folder in profiles], out, rule, overwrite=overwrite)
    if as_json:
        from rolellm.cli.output import print_json

        print_json(summary.to_dict())
        return
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import visible

    rows = [[visible(name), f"{count:,}"] for name, count in summary.rows.items()]
    print_table(visible(str(out)), ["file", "rows"], rows)
    for note in summary.notes:
        typer.echo(f"note: {visible(note)}")
    if summary.held_out:
        typer.echo(f"held out for role generalization: {visible(', '.join(summary.held_out))}")
    typer.echo(f"Inspect it with: rolellm data stats --data-dir {visible(shlex.quote(str(out)))}")
    # As Python takes it: the name "rolebench" is known once rolellm is imported.
    typer.echo("Load it with:\nimport rolellm\nfrom datasets import load_dataset")
    for config in summary.configs:
        typer.echo(f"load_dataset({'rolebench'!r}, {config!r}, data_dir={str(out)!r})")


# --- The command group


app = typer.Typer(name="role", help=__doc__, no_args_is_help=True)
app.command("parse")(parse)
app.command("import-card")(import_card)
app.command("build")(build)
app.command("show")(show)
app.command("export-card")(export_card)
app.command("release")(release)
