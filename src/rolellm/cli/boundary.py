"""``rolellm boundary``: what a character knows that it cannot know, and what it denies that it must know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, resumable, say, show_table
from rolellm.cli.play import Played, played_model
from rolellm.playing.settings import PlaySettings
from rolellm.testing.boundary import BoundarySettings


@with_options
def boundary(
    run: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    asked: Played,
    probes: BoundarySettings,
    how: PlaySettings,
    out: Path = Path("boundary"),
    judge: Path | None = None,
    others: list[Path] | None = None,
    as_json: AsJson = False,
) -> None:
    """Probe where a character's knowledge ends: later events, other stories, the modern world, and what it must know.

    Args:
        folder: The character's folder, with its script and the pairs of `rolellm instruct`.
        out: Folder for boundary.json (every probe, reply and verdict) and the journals.
        judge: YAML settings of a model that also judges every reply.
        others: Folders of characters from other stories; defaults to the embedded sample's.
    """
    from rolellm.cli.llm_options import scripted_models
    from rolellm.construct.sheet import read_sheet
    from rolellm.llm.llm import LLM
    from rolellm.report.boundary_section import boundary_table
    from rolellm.report.score_table import to_rich
    from rolellm.testing.boundary import KINDS, run_boundary

    judging = None if judge is None else LLM.of(judge, scripted_models())
    strangers = [read_sheet(one).profile() for one in others] if others else None
    with resumable(run):
        found = run_boundary(folder, played_model(asked), out, probes, how, others=strangers, judge=judging)
    if as_json:
        print_json(found)
        return
    show_table(to_rich(boundary_table(found), digits=1))
    if agreement := found["agreement"]:
        say(f"Rule and judge agree on {agreement['share']:.0%} of {agreement['n']} replies.")
    for kind in (kind for kind in KINDS if kind not in found["kinds"]):
        say(f"note: no probes of kind {kind.replace('_', ' ')}; {_NEEDED.get(kind, _PAIRS)}", err=True)
    if found["unscored"]:
        say(f"note: {found['unscored']} probes have no reply; {out / 'boundary.json'} says why", err=True)


_PAIRS = "they need a script, and pairs of `rolellm instruct` whose answers have its words"
_NEEDED = {
    "other_story": "name folders of other characters in this language (--others)",
    "modern": "give the year of the character's world (--world-year)",
}
