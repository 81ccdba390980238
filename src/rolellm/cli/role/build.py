"""``rolellm role build``: a role's description and catchphrases, out of its script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import LLM, show_estimate, takes_llm

if TYPE_CHECKING:
    from rolellm.construct.character import Character
    from rolellm.construct.profile import BuildSettings, Built
    from rolellm.llm.estimate import Estimate

_WIDE = 60
_DIGITS = 10
_OWN = "Instead of asking"

Dialogue = Annotated[
    Path | None,
    typer.Argument(metavar="D.jsonl", help="The script's turns, of `rolellm role parse`.", show_default=False),
]
Out = Annotated[Path | None, typer.Option("--out", help="The character's folder to make; by default that of --from.")]
Role = Annotated[str | None, typer.Option("--role", help="The role, as D.jsonl has it.")]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="PROFILE", help="Instead of D.jsonl: a character's folder, such as a card's."),
]
Language = Annotated[Literal["en", "zh"] | None, typer.Option("--language", help="By default found out.")]
Script = Annotated[str | None, typer.Option("--script", help="What the script is called.")]
Alias = Annotated[
    list[str] | None, typer.Option("--alias", help="Another name of the role, to keep out; may be repeated.")
]
Catchphrases = Annotated[str, typer.Option("--catchphrases", metavar="N|none", help="The most catchphrases.")]
CatchphrasesBy = Annotated[
    Literal["model", "count"],
    typer.Option("--catchphrases-by", help="count: take those said most; asks nobody.", rich_help_panel=_OWN),
]
Description = Annotated[
    Path | None,
    typer.Option("--description", help="A text file with your own, in the second person.", rich_help_panel=_OWN),
]
CheckKnowledge = Annotated[
    bool, typer.Option("--check-knowledge", help="Ask first what the model knows of the role, for you to read.")
]
ExcerptTokens = Annotated[int, typer.Option("--excerpt-tokens", min=200, help="Of the script in a prompt.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0, help="Of the model's sampling.")]
TopP = Annotated[float, typer.Option("--top-p", min=0, max=1, help="Of the model's sampling.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="The most tokens of a reply.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Sent to servers that know it.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace whatever character --out holds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _asks_nobody(options: Mapping[str, Any]) -> bool:
    without = options["catchphrases"].strip().lower() in ("none", "0") or options["catchphrases_by"] == "count"
    return options["description"] is not None and without and not options["check_knowledge"]


@partial(takes_llm, unless=_asks_nobody)
def build(
    context: typer.Context,
    llm: LLM,
    dialogue: Dialogue = None,
    role: Role = None,
    out: Out = None,
    source: From = None,
    language: Language = None,
    script: Script = None,
    alias: Alias = None,
    catchphrases: Catchphrases = "3",
    catchphrases_by: CatchphrasesBy = "model",
    description: Description = None,
    check_knowledge: CheckKnowledge = False,
    excerpt_tokens: ExcerptTokens = 6000,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    max_tokens: MaxTokens = 2000,
    seed: Seed = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a role's profile: a description, first in the third person, then in the second, and catchphrases."""
    from rolellm.cli.output import next_line
    from rolellm.construct.profile import BuildSettings, planned_requests
    from rolellm.inert import visible
    from rolellm.llm.model import Sampling

    settings = BuildSettings(
        catchphrases=_number(catchphrases),
        picked_by=catchphrases_by,
        description=_read(description),
        check_knowledge=check_knowledge,
        work=script,
        excerpt_tokens=excerpt_tokens,
        sampling=Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed),
    )
    folder = _folder(out, source)
    start = _start(dialogue, source, role, language, alias or [], script)
    if llm.dry_run:
        requests = planned_requests(start, settings, llm.counter)
        show_estimate(llm.estimate(requests) if requests else _nothing(), as_json)
        return
    built = _run(context, llm, start, folder, settings, source=source, overwrite=overwrite, show=not as_json)
    if as_json:
        _print(built)
        return
    _show(built)
    typer.echo(f"Go on with: {visible(next_line(context, 'rolellm', 'instruct', str(built.folder)))}")


def _run(
    context: typer.Context,
    llm: LLM,
    start: Character,
    folder: Path,
    settings: BuildSettings,
    *,
    source: Path | None,
    overwrite: bool,
    show: bool,
) -> Built:
    from rolellm.cli.output import resumable
    from rolellm.construct.profile import Asking, build_folder

    models = llm.models if settings.asks else ()
    asking = Asking(models, replace(llm.options, show_progress=show), llm.counter)
    with resumable(context):
        return build_folder(start, folder, settings, asking, card=source, overwrite=overwrite)


def _nothing() -> Estimate:
    from rolellm.llm.estimate import Case, Estimate

    return Estimate(0, Case(), Case(), Case(), max_attempts=1)


def _number(text: str) -> int:
    from rolellm.errors import RecipeError

    value = text.strip().lower()
    if value == "none":
        return 0
    if not (value.isascii() and value.isdigit() and len(value) < _DIGITS):
        raise RecipeError(f"--catchphrases {text!r:.60} is neither a number from 0 to 20 nor none")
    return int(value)


def _read(path: Path | None) -> str | None:
    from rolellm.errors import RecipeError

    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"--description {path} cannot be read ({error}); give a text file in UTF-8") from error


def _folder(out: Path | None, source: Path | None) -> Path:
    from rolellm.errors import RecipeError

    folder = out or source
    if folder is None:
        raise RecipeError("no folder is named for the character; add --out PROFILE")
    if folder.exists() and not folder.is_dir():
        option = "--from" if out is None else "--out"
        raise RecipeError(f"{option} {folder} is a file; a character is a folder")
    return folder


def _start(
    dialogue: Path | None,
    source: Path | None,
    role: str | None,
    language: Literal["en", "zh"] | None,
    aliases: list[str],
    script: str | None,
) -> Character:
    from rolellm.construct.character import read_character
    from rolellm.construct.profile import start_character
    from rolellm.errors import RecipeError

    if (dialogue is None) == (source is None):
        raise RecipeError("give either the turns of a script (D.jsonl) or --from PROFILE, one of the two")
    if dialogue is not None:
        if role is None:
            raise RecipeError(f"whose profile? Add --role NAME, as {dialogue} has it")
        return start_character(dialogue, role, language=language, aliases=aliases, script=script)
    if role is not None or language is not None:
        raise RecipeError("--role and --language are those of the character that --from names; leave them out")
    character = read_character(str(source))
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


def _show(built: Built) -> None:
    from rolellm.cli.role.show import show_character
    from rolellm.inert import visible

    show_character(built.character, built.folder)
    for note in built.notes:
        typer.echo(f"note: {visible(note)}")
    spent = built.manifest["spent"]
    if spent:
        typer.echo(f"{spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
    if built.knowledge is not None:
        typer.echo(f"Read {visible(str(built.knowledge))}: nobody has judged what the model says of the role.")
