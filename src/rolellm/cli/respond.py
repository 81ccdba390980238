"""``rolellm respond``: RoleGPT's replies to instructions in a role's voice."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import LLM, show_estimate, takes_llm

if TYPE_CHECKING:
    from rolellm.construct.rolegpt.prompts import RolePrompts
    from rolellm.construct.rolegpt.respond import Asked, Explanation, RespondSettings
    from rolellm.construct.sheet import Sheet

_EXPLAINED = 5
_WIDE = 60


@partial(takes_llm, unless="explain")
def respond(
    context: typer.Context,
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A character's folder.")],
    instructions: Annotated[
        Path, typer.Option("--instructions", help="JSON Lines with `instruction`, or `question` as in kept.jsonl.")
    ],
    llm: LLM,
    strategy: Annotated[
        Literal["zero-shot", "few-shot-prompt", "few-shot-dialogue"],
        typer.Option("--strategy", help="Demonstrations: none, as text in one turn, or as turns of a dialogue."),
    ] = "few-shot-dialogue",
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; by default PROFILE/respond.")] = None,
    demonstrations: Annotated[int, typer.Option("--demonstrations", min=0, help="How many exchanges to show.")] = 5,
    replies: Annotated[
        int, typer.Option("--replies", min=1, help="For each instruction; the last is held out as the baseline.")
    ] = 6,
    max_prompt_tokens: Annotated[
        int, typer.Option("--max-prompt-tokens", min=1, help="What goes over it is left out, the worst first.")
    ] = 3000,
    lore: Annotated[int, typer.Option("--lore", min=0, help="The most entries of lore in a prompt.")] = 2,
    temperature: Annotated[float, typer.Option("--temperature", min=0)] = 0.7,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1)] = 0.95,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="The most tokens of a reply.")] = 200,
    seed: Annotated[int | None, typer.Option("--seed", help="Sent to servers that know it.")] = None,
    system_template: Annotated[
        Path | None, typer.Option("--system-template", help="Another system instruction, with {role}, {description}.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many instructions.")] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help=f"Show what prompts are made of, of {_EXPLAINED} or --limit, and ask nobody."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Ask a role each instruction several times over: five replies as references, the sixth held out."""
    from rolellm.cli.output import resumable
    from rolellm.construct.context_instruct.run import KEPT
    from rolellm.construct.rolegpt.prompts import PromptSettings, RolePrompts
    from rolellm.construct.rolegpt.respond import RespondSettings, planned_requests, read_asked
    from rolellm.construct.sheet import check_run_folder, read_sheet
    from rolellm.core.fingerprint import hash_file
    from rolellm.llm.model import Sampling

    settings = RespondSettings(
        PromptSettings(strategy, demonstrations, lore, max_prompt_tokens, system_template),
        replies,
        Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed),
    )
    character = read_sheet(profile)
    asked = read_asked(instructions, character.role)[:limit]
    if explain:
        _explain(RolePrompts(character, settings.prompts, llm.counter), asked[: limit or _EXPLAINED], as_json)
        return
    if llm.dry_run:
        show_estimate(llm.estimate(planned_requests(character, asked, settings, llm.counter)), as_json)
        return
    folder = out or profile / "respond"
    check_run_folder(folder, KEPT)
    source = {"file": instructions.name, "sha256": hash_file(instructions), "asked": len(asked)}
    with resumable(context):
        summary = _run(llm, folder, source, character, asked, settings)
    if as_json:
        from rolellm.cli.output import print_json

        print_json(summary)
    else:
        _show(summary)
        if summary["replies"]:
            from rolellm.core.sanitize import visible

            line = ["rolellm", "role", "release", str(profile), "--out", f"{profile.resolve().name}-data"]
            typer.echo(f"Go on with: {visible(shlex.join(line))}")
    if not summary["replies"]:
        raise typer.Exit(1)


def _run(
    llm: LLM,
    folder: Path,
    source: dict[str, Any],
    character: Sheet,
    asked: list[Asked],
    settings: RespondSettings,
) -> dict[str, Any]:
    from rolellm.construct.rolegpt.respond import respond as run
    from rolellm.llm.client import Client

    with Client(folder, llm.models, llm.options) as client:
        result = run(character, asked, client, settings, llm.counter)
        models, spent = llm.settings.describe(), client.spent.to_dict()
        path = result.write(folder, instructions=source, models=models, spent=spent)
        return {"out": str(path), **result.summary(), "spent": client.spent.to_dict()}


def _show(summary: dict[str, Any]) -> None:
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import label, visible

    wanted = summary["replies"] + summary["missing"]
    rows = [
        ("instructions", f"{summary['instructions']:,}"),
        ("replies", f"{summary['replies']:,} of {wanted:,}"),
        ("held out as the baseline", f"{summary['held_out']:,}"),
        *((f"turned down: {name.replace('_', ' ')}", f"{count:,}") for name, count in summary["turned_down"].items()),
        ("demonstrations left out by the budget", f"{summary['demonstrations_dropped']:,}"),
        ("calls; replies kept from before", f"{summary['spent']['calls']:,}; {summary['spent']['from_journal']:,}"),
        ("US dollars in all", f"{summary['spent']['cost']:.4f}"),
    ]
    print_table(f"{label(summary['role'], _WIDE)}, {summary['strategy']}", ("", ""), rows)
    if summary["missing"]:
        folder = Path(summary["out"]).parent
        reason, count = next(iter(summary["failed"].items()))
        typer.echo(
            f"note: {summary['missing']:,} of {wanted:,} replies are missing, most often ({count:,}): "
            f"{label(reason, 200)}; {visible(str(folder / 'failed.jsonl'))} has all, and --retry-failed asks again",
            err=True,
        )
    typer.echo(f"The replies are in {visible(summary['out'])}.")


def _explain(prompts: RolePrompts, asked: Iterable[Asked], as_json: bool) -> None:
    from rolellm.construct.rolegpt.respond import explain

    found = list(explain(prompts, asked))
    if as_json:
        from rolellm.cli.output import print_json

        settings = prompts.settings
        print_json({"strategy": settings.strategy, "explained": [item.to_dict() for item in found]})
        return
    for item in found:
        _show_explanation(item)


def _show_explanation(item: Explanation) -> None:
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import label

    rows = []
    for line in item.lines:
        why = {"key": "key: ", "words": "", "order": "no word; next in the script"}[line.by] + ", ".join(line.shared)
        place = f"{line.start}–{line.end}" if line.start >= 0 else "–"
        verdict = "shown" if line.shown else "left out"
        said = label(f"{line.before} → {line.text}" if line.before else line.text, _WIDE)
        cells = (f"{line.score:.2f}", label(why, 40), f"{line.tokens:,}", place, verdict)
        rows.append((f"{line.kind} {line.rank}: {said}", *cells))
    limit = "no limit" if item.limit is None else f"at most {item.limit:,}"
    counted = "tokens" if item.exact else "tokens, estimated"
    title = f"{label(item.question, 100)}\n{item.tokens:,} {counted} ({item.base:,} without what is below; {limit})"
    if not rows:
        typer.echo(f"{title}\nnothing is picked for it")
        return
    print_table(title, ("picked", "BM25", "shared", "tokens", "characters", ""), rows)
