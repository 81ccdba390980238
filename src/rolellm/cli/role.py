"""Make a role: script, profile, card, data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import make_llm, run_or_estimate, stop_if_dry
from rolellm.cli.options import with_options
from rolellm.cli.output import build_next_line
from rolellm.core.errors import SettingsError
from rolellm.core.foreign import read_text
from rolellm.core.records import Language
from rolellm.core.result import Result
from rolellm.core.settings import Advanced
from rolellm.llm.llm import CallOptions, ModelOptions
from rolellm.making.settings import BuildSettings, SplitRule

app = typer.Typer(name="role", help=__doc__, no_args_is_help=True)


@app.command("parse")
@with_options
def run_role_parse(
    script: Annotated[Path, typer.Argument()],
    role: str,
    out: Path,
    model_options: ModelOptions,
    call_options: CallOptions,
    aliases: Annotated[list[str] | None, typer.Option("--alias")] = None,
    format: Literal["play", "screenplay", "transcript", "novel", "subtitles", "table"] | None = None,
    language: Advanced[Language | None] = None,
    encoding: Advanced[str | None] = None,
    columns: Advanced[str | None] = None,
) -> Result:
    """Read a script for one role: who says what, in which scene, and where in the source.

    Who speaks the quotations of a novel, a model finds (--llm).

    Args:
        script: A play, screenplay, transcript, novel, .srt, .vtt, .csv or .jsonl.
        role: The role's name.
        out: JSON Lines file for the turns.
        aliases: Another name of the role in the script; may be repeated.
        format: Detected by default.
        language: Detected by default.
        encoding: Text encoding, such as gb18030; detected by default.
        columns: A table's columns, such as speaker=name,text=line; usual names are detected.
    """
    from rolellm.characters.scripts.parse import ScriptSummary, clean_names, read_script, select_role
    from rolellm.characters.scripts.turns import write_turns
    from rolellm.data.own_rows import parse_columns
    from rolellm.making.attribution import Attribute, check_novel

    _check_script_out(out, script)
    llm = make_llm(model_options, call_options) if model_options.is_named or call_options.dry_run else None
    names = clean_names(role, aliases or [])
    table_columns = parse_columns([columns or ""])
    reading = read_script(script, names, format=format, language=language, encoding=encoding, columns=table_columns)
    attribution: dict[str, Any] = {}
    if llm is None:
        parsed = select_role(names, reading)
    else:
        check_novel(reading)
        run = run_or_estimate(Attribute(reading, names), llm, out.with_suffix(".attribution"))
        parsed, _ = run.result
        attribution = dict(run.summary)
        attribution |= {"requests": run.asked, "failed": run.failed, "spent": run.manifest["spent"]}
    write_turns(out, parsed.turns, parsed.role, speakers=dict(enumerate(parsed.speakers)))
    return ScriptSummary(parsed, out, attribution)


def _check_script_out(out: Path, script: Path) -> None:
    if out.exists() and script.exists() and out.samefile(script):
        raise SettingsError(f"--out {out} is the script itself; name another file")
    if out.is_dir():
        raise SettingsError(f"--out {out} is a folder; name a file in it, such as {out / 'dialogue.jsonl'}")


@app.command("build")
@with_options
def run_role_build(
    source: Annotated[Path, typer.Argument(metavar="D.jsonl|CARD|PROFILE")],
    model_options: ModelOptions,
    call_options: CallOptions,
    settings: BuildSettings,
    role: str | None = None,
    out: Path | None = None,
    language: Advanced[Language | None] = None,
    script: Advanced[str | None] = None,
    aliases: Annotated[list[str] | None, typer.Option("--alias")] = None,
    description: Path | None = None,
    overwrite: bool = False,
) -> Result:
    """Make a role's profile: a description, first in the third person, then in the second, and catchphrases.

    Args:
        source: The script's turns, from `rolellm role parse`; a card; or a character's folder.
        role: The role's name in D.jsonl.
        out: Folder for the character; defaults to its own, which a card has next to it.
        language: Detected by default.
        script: Title of the script.
        aliases: Another name of the role, to keep out of the description; may be repeated.
        description: A text file with your own description, in the second person.
        overwrite: Replace the character in --out.
    """
    from rolellm.characters.folder import is_card, open_character
    from rolellm.making.character import Character
    from rolellm.making.profile.build import BuildProfile, build_folder
    from rolellm.making.profile.start import start_sheet

    if out is not None and out.is_file():
        raise SettingsError(f"--out {out} is a file; a character is a folder")
    names, home = tuple(aliases or ()), None
    if source.is_dir() or is_card(source):
        if role is not None or language is not None:
            raise SettingsError(f"role and language come from {source}; leave them out")
        start, home = open_character(source, out, make=not call_options.dry_run, overwrite=overwrite)
        more = tuple(name for name in names if name not in start.names)
        start = replace(start, aliases=(*start.aliases, *more))
        if script:
            start = replace(start, script=script)
    else:
        if role is None and source.is_file():
            raise SettingsError(f"--role is missing; use a name from {source}")
        if role is not None and out is None:
            raise SettingsError("no folder for the character; add --out PROFILE")
        start = start_sheet(source, role or "", language=language, aliases=names, script=script)
    if description is not None:
        settings = replace(settings, description=read_text(description))
    step = BuildProfile(start, settings, out or home)
    llm = make_llm(model_options, call_options, required=step.needs_model)
    stop_if_dry(step, llm)
    run = build_folder(step, llm, card=home, overwrite=overwrite)
    folder = run.folder.parent
    next_line = build_next_line(model_options, "rolellm", "instruct", str(folder))
    return replace(run, result=Character.load(folder)).continue_with(next_line)


@app.command("card")
@with_options
def run_role_card(
    source: Annotated[Path, typer.Argument(metavar="PROFILE|CARD")],
    out: Path | None = None,
    language: Advanced[Language | None] = None,
    role: Advanced[str | None] = None,
    image: Advanced[Path | None] = None,
    overwrite: bool = False,
) -> Result:
    """Show a character, import a character card (V1, V2, V3) into a folder, or write a card.

    Without --out, shows description, catchphrases, dialogue, lore, and which stages are done. Nothing that a card names
    is fetched. A card is written as V3: as it was imported, with later changes, or new.

    Args:
        source: A character's folder, or a card: JSON, CHARX, or PNG with a card in it.
        out: A folder to import the card into; or the card to write: .json, .png or .charx.
        language: Language of an imported card; detected by default.
        role: Role name to use instead of the imported card's.
        image: PNG to put the card into; defaults to the imported one, or a plain one.
        overwrite: Replace what is at --out.
    """
    from rolellm.characters.folder import export_card, import_card
    from rolellm.making.character import Character

    if out is None:
        return Character.load(source)
    if source.is_file() and (out.is_dir() or not out.suffix):
        import_card(source, out, role=role, language=language, overwrite=overwrite)
        return Character.load(out)
    return export_card(source, out, picture=image, overwrite=overwrite)


@app.command("release")
@with_options
def run_role_release(
    profiles: Annotated[list[Path], typer.Argument(metavar="PROFILE")],
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
