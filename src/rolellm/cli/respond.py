"""``rolellm respond``: RoleGPT's replies to instructions in a role's voice."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.llm_options import AskedForAll, language_model, show_estimate
from rolellm.cli.options import AsJson, Profile, with_options
from rolellm.cli.output import check_missing, print_json, print_table, resumable, say
from rolellm.construct.settings import RespondSettings
from rolellm.core.sanitize import label

if TYPE_CHECKING:
    from rolellm.construct.rolegpt.prompts import RolePrompts
    from rolellm.construct.rolegpt.respond import Asked

_WIDE = 60


@with_options
def respond(
    context: typer.Context,
    profile: Profile,
    instructions: Path,
    asked: AskedForAll,
    settings: RespondSettings,
    out: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    explain: bool = False,
    as_json: AsJson = False,
) -> None:
    """Ask a role each instruction several times: five replies as references, the sixth held out.

    Args:
        instructions: JSON Lines with `instruction`, or `question` as in kept.jsonl.
        out: The run's folder; defaults to PROFILE/respond.
        limit: Use only the first N instructions.
        explain: Show what the first 5 prompts (or --limit) are made of; ask no model.
    """
    from rolellm.construct.rolegpt.prompts import RolePrompts
    from rolellm.construct.rolegpt.respond import instructions_of, language_note, planned_requests, respond_folder
    from rolellm.construct.sheet import read_sheet

    llm, character = language_model(asked, required=not explain), read_sheet(profile)
    chosen = instructions_of(instructions, character.role, limit)
    if note := language_note(character, chosen.asked):
        say(f"note: {note}", err=True)
    if explain:
        _explain(RolePrompts(character, settings, llm.counter), chosen.asked[: limit or 5], as_json)
        return
    if llm.dry_run:
        show_estimate(llm.estimate(planned_requests(character, chosen.asked, settings, llm.counter)), as_json)
        return
    with resumable(context):
        _, summary = respond_folder(character, chosen, out or profile / "respond", settings, llm)
    if as_json:
        print_json(summary)
    else:
        _show(summary)
    if not summary["replies"]:
        raise typer.Exit(1)
    check_missing(context, summary["missing"], summary["replies"] + summary["missing"])
    if not as_json:
        line = ["rolellm", "role", "release", str(profile), "--out", f"{profile.resolve().name}-data"]
        say(f"Go on with: {shlex.join(line)}")


def _show(summary: dict[str, Any]) -> None:
    wanted = summary["replies"] + summary["missing"]
    rows: list[tuple[str, str | int]] = [
        ("instructions", summary["instructions"]),
        ("replies", f"{summary['replies']:,} of {wanted:,}"),
        ("held out as the baseline", summary["held_out"]),
        *((f"turned down: {name.replace('_', ' ')}", count) for name, count in summary["turned_down"].items()),
        ("demonstrations left out by the budget", summary["demonstrations_dropped"]),
        ("calls; replies from the journal", f"{summary['spent']['calls']:,}; {summary['spent']['from_journal']:,}"),
        *([("US dollars in total", f"{cost:.4f}")] if (cost := summary["spent"]["cost"]) else []),
    ]
    print_table(f"{label(summary['role'], _WIDE)}, {summary['strategy']}", ("", ""), rows)
    if summary["missing"]:
        reason, count = next(iter(summary["failed"].items()))
        say(
            f"note: {summary['missing']:,} of {wanted:,} replies are missing, most often ({count:,}): "
            f"{label(reason, 200)}; {Path(summary['out']).with_name('failed.jsonl')} lists all; --retry-failed "
            "retries them",
            err=True,
        )
    say(f"The replies are in {summary['out']}.")


def _explain(prompts: RolePrompts, asked: Iterable[Asked], as_json: bool) -> None:
    from rolellm.construct.rolegpt.respond import explain

    found = list(explain(prompts, asked))
    if as_json:
        print_json({"strategy": prompts.settings.strategy, "explained": found})
        return
    for item in found:
        _show_explanation(item)


def _show_explanation(item: Mapping[str, Any]) -> None:
    rows = []
    for line in item["lines"]:
        shared = ", ".join(line["shared"])
        by = {"key": "key: ", "words": "", "constant": "always", "order": "no word; next in the script"}
        why = by[line["by"]] + shared
        place = f"{line['start']}–{line['end']}" if line["start"] >= 0 else "–"
        said = label(f"{line['before']} → {line['text']}" if line["before"] else line["text"], _WIDE)
        name, score = f"{line['kind']} {line['rank']}: {said}", f"{line['score']:.2f}"
        state = "shown" if line["shown"] else "left out"
        rows.append((name, score, label(why, 40), line["tokens"], place, state))
    limit = "no limit" if item["limit"] is None else f"at most {item['limit']:,}"
    counted = "tokens" if item["exact"] else "tokens, estimated"
    total = f"{item['tokens']:,} {counted} ({item['base']:,} without what is below; {limit})"
    title = f"{label(item['question'], 100)}\n{total}"
    if not rows:
        typer.echo(f"{title}\nnothing is picked for it")
        return
    print_table(title, ("picked", "BM25", "shared", "tokens", "characters", ""), rows)
