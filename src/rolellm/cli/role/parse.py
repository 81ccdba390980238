"""``rolellm role parse``: a script → turns, and what was found in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rolellm.construct.scripts.parse import Parsed
    from rolellm.records import Turn

_SPEAKERS = 15
_EXAMPLES = 5


def parse(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A play, screenplay, transcript, novel or .srt.")],
    role: Annotated[str, typer.Option("--role", help="The name that the role's speeches are to carry.")],
    out: Annotated[Path, typer.Option("--out", help="The turns, JSON Lines.")],
    alias: Annotated[
        list[str] | None, typer.Option("--alias", help="Another name that the script has for it; may be repeated.")
    ] = None,
    format: Annotated[
        Literal["play", "screenplay", "transcript", "novel", "subtitles"] | None,
        typer.Option("--format", help="By default found out."),
    ] = None,
    language: Annotated[Literal["en", "zh"] | None, typer.Option("--language", help="By default found out.")] = None,
    encoding: Annotated[str | None, typer.Option("--encoding", help="Such as gb18030; by default found out.")] = None,
    layout: Annotated[
        Literal["turns", "release"],
        typer.Option("--layout", help="release: as the profiles of RoleBench are laid out."),
    ] = "turns",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Read a script for one role: who says what, in which scene, and where it stands in the source."""
    from rolellm.construct.scripts.parse import parse_script
    from rolellm.construct.scripts.turns import write_turns
    from rolellm.errors import RecipeError
    from rolellm.progress import Progress

    if out.exists() and script.exists() and out.samefile(script):
        raise RecipeError(f"--out {out} is the script itself; name another file")
    if out.is_dir():
        raise RecipeError(f"--out {out} is a folder; name a file in it, such as {out / 'dialogue.jsonl'}")
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
    from rolellm.inert import visible

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
        typer.echo(f"Nothing was put under its name by these. Where one is right, add: {visible(options)}")
    typer.echo(f"{sum(kinds.values()):,} turns in {visible(str(out))}")


def _how_read(parsed: Parsed) -> str:
    if not parsed.format_scores:
        return f"{parsed.format} (as named)"
    return f"{parsed.format} (score {parsed.format_scores[parsed.format]:.2f})"


def _show_places(title: str, turns: tuple[Turn, ...]) -> None:
    from rolellm.cli.output import print_table
    from rolellm.inert import label

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
    from rolellm.inert import visible

    return [tuple(visible(cell) for cell in row) for row in rows]
