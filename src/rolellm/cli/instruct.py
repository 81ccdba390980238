"""``rolellm instruct``: Context-Instruct, from a character's folder to questions and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import LLM, show_estimate, takes_llm

if TYPE_CHECKING:
    from rolellm.construct.context_instruct import InstructResult, InstructSettings
    from rolellm.construct.sheet import Sheet

_FILTERS = "Filters (changing them asks nobody anything: replies come from the run's journal)"
_EXAMPLES = 3

Profile = Annotated[Path, typer.Argument(metavar="PROFILE", help="The folder of a character, see `rolellm role`.")]
Out = Annotated[Path | None, typer.Option("--out", help="Where the run goes; by default PROFILE/instruct.")]
PerRole = Annotated[int, typer.Option("--per-role", min=1, help="Different questions to make, before any filter.")]
AgnosticShare = Annotated[
    float, typer.Option("--agnostic-share", min=0, max=1, help="The part made from the profile alone.")
]
PerRequest = Annotated[int, typer.Option("--per-request", min=1, help="Pairs that one request asks for.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="The most rounds of requests.")]
ChunkTokens = Annotated[int, typer.Option("--chunk-tokens", min=50, help="Of script in one prompt.")]
OverlapTokens = Annotated[int, typer.Option("--overlap-tokens", min=0, help="That a chunk repeats of the one before.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0, help="Of the model's sampling.")]
TopP = Annotated[float, typer.Option("--top-p", min=0, max=1, help="Of the model's sampling.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="The most tokens of a reply.")]
Seed = Annotated[int, typer.Option("--seed", help="Another seed takes the script's chunks in another order.")]
MinConfidence = Annotated[
    Literal["high", "medium", "low"],
    typer.Option("--min-confidence", help="The lowest that both ratings may be.", rich_help_panel=_FILTERS),
]
NoConfidence = Annotated[
    bool, typer.Option("--no-confidence", help="Keep whatever the ratings say.", rich_help_panel=_FILTERS)
]
NoStandalone = Annotated[
    bool, typer.Option("--no-standalone", help="Keep pairs that speak of their source.", rich_help_panel=_FILTERS)
]
NoCharacter = Annotated[
    bool, typer.Option("--no-character", help="Keep answers out of character.", rich_help_panel=_FILTERS)
]
MinGrounding = Annotated[
    float | None,
    typer.Option(
        "--min-grounding",
        min=0,
        max=1,
        help="The least share of content words found in segment or profile. [default: 0.25]",
        rich_help_panel=_FILTERS,
    ),
]
NoGrounding = Annotated[
    bool, typer.Option("--no-grounding", help="Keep script-based pairs unchecked.", rich_help_panel=_FILTERS)
]
Duplicates = Annotated[
    Literal["bm25", "minhash"],
    typer.Option("--duplicates", help="How near-duplicates are found.", rich_help_panel=_FILTERS),
]
Similarity = Annotated[
    float | None,
    typer.Option(
        "--similarity",
        min=0,
        max=1,
        help="From which on a question is a near-duplicate. [default: 0.8 (bm25), 0.75 (minhash)]",
        rich_help_panel=_FILTERS,
    ),
]
NoDuplicates = Annotated[bool, typer.Option("--no-duplicates", help="Keep near-duplicates.", rich_help_panel=_FILTERS)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@takes_llm
def instruct(
    context: typer.Context,
    profile: Profile,
    llm: LLM,
    out: Out = None,
    per_role: PerRole = 400,
    agnostic_share: AgnosticShare = 0.65,
    per_request: PerRequest = 10,
    rounds: Rounds = 12,
    chunk_tokens: ChunkTokens = 1000,
    overlap_tokens: OverlapTokens = 100,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    max_tokens: MaxTokens = 2000,
    seed: Seed = 0,
    min_confidence: MinConfidence = "medium",
    no_confidence: NoConfidence = False,
    no_standalone: NoStandalone = False,
    no_character: NoCharacter = False,
    min_grounding: MinGrounding = None,
    no_grounding: NoGrounding = False,
    duplicates: Duplicates = "bm25",
    similarity: Similarity = None,
    no_duplicates: NoDuplicates = False,
    as_json: AsJson = False,
) -> None:
    """Make questions and answers for a role out of its profile and script, and filter them.

    What passes the filters is in RUN/kept.jsonl, what does not, with the reason, in RUN/dropped.jsonl.
    """
    from rolellm.construct.context_instruct import FilterSettings, InstructSettings
    from rolellm.construct.context_instruct.grounding import LEAST_FOUND
    from rolellm.construct.sheet import check_run_folder, read_sheet

    filters = FilterSettings(
        min_confidence=None if no_confidence else min_confidence,
        standalone=not no_standalone,
        character=not no_character,
        grounding=None if no_grounding else LEAST_FOUND if min_grounding is None else min_grounding,
        duplicates=None if no_duplicates else duplicates,
        similarity=similarity,
    )
    settings = InstructSettings(
        per_role=per_role,
        script_agnostic_share=agnostic_share,
        per_request=per_request,
        rounds=rounds,
        chunk_tokens=chunk_tokens,
        overlap_tokens=overlap_tokens,
        seed=seed,
        filters=filters,
    )
    sampling = replace(settings.sampling, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    settings = replace(settings, sampling=sampling)
    character = read_sheet(profile)
    if llm.dry_run:
        from rolellm.construct.context_instruct import planned_requests

        show_estimate(llm.estimate(planned_requests(character, settings, count=llm.counter.count)), as_json)
        return
    from rolellm.cli.output import next_line, resumable
    from rolellm.construct.rolegpt.respond import REPLIES
    from rolellm.core.sanitize import visible

    folder = out or profile / "instruct"
    check_run_folder(folder, REPLIES)
    with resumable(context):
        result, manifest = _run(character, folder, llm, settings)
    if as_json:
        _print(result, folder, manifest)
    else:
        _show(result, folder, manifest)
        if result.kept:
            words = ("rolellm", "respond", str(profile), "--instructions", "general.jsonl")
            typer.echo(f"Go on with: {visible(next_line(context, *words))}")
            typer.echo("Draw general.jsonl with: rolellm instructions sample DATASET --out general.jsonl")
    if not result.verdicts:
        raise typer.Exit(1)


def _run(character: Sheet, out: Path, llm: LLM, settings: InstructSettings) -> tuple[InstructResult, dict[str, Any]]:
    from rolellm.construct.context_instruct import context_instruct, write_result
    from rolellm.core.sanitize import visible
    from rolellm.llm.client import FAILED, Client

    with Client(out, llm.models, llm.options) as client:
        result = context_instruct(character, client, settings, count=llm.counter.count)
        manifest = write_result(result, out, client)
    if result.shortfall:
        typer.echo(f"warning: {result.shortfall}.", err=True)
    elif result.failures:
        failed = visible(str(out / FAILED))
        typer.echo(f"note: requests without a usable reply: {len(result.failures):,}; {failed} says why", err=True)
    return result, manifest


def _print(result: InstructResult, out: Path, manifest: dict[str, Any]) -> None:
    from rolellm.cli.output import print_json

    names = ("role", "counts", "shortfall", "failed", "spent")
    print_json({"out": str(out), "enough": result.shortfall is None, **{name: manifest[name] for name in names}})


def _show(result: InstructResult, out: Path, manifest: dict[str, Any]) -> None:
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import label, visible

    counts = manifest["counts"]
    examples: dict[str, list[str]] = {}
    for verdict in result.dropped:
        examples.setdefault(str(verdict.by), []).append(label(verdict.reason or "", 80))
    rows = [("kept", f"{counts['kept']:,}", "")]
    for name, number in counts["dropped"].items():
        seen = list(dict.fromkeys(examples.get(name, [])))[:_EXAMPLES]
        rows.append((f"dropped: {name}", f"{number:,}", "\n".join(seen)))
    title = (
        f"{counts['candidates']:,} candidates for {label(result.character.role, 40)}, {counts['distinct']:,} different"
    )
    print_table(title, ("verdict", "pairs", "such as"), rows)
    spent = manifest["spent"]
    by_type = ", ".join(f"{number:,} {name}" for name, number in counts["kept_by_type"].items())
    typer.echo(f"Kept: {by_type}; {spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
    typer.echo(visible(f"{out / 'kept.jsonl'} and, with reasons, {out / 'dropped.jsonl'}"))
