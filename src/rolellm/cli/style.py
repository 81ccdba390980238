"""``rolellm style``: which role replies sound like, by a meter that is no language model and says how good it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rolellm.cli.options import AsJson, Config, DataDir, Split, with_options
from rolellm.cli.output import estimate_text, print_json, print_table, say
from rolellm.evaluation.settings import Bootstrap

_MAP = 12


@with_options
def style(
    config: Config,
    bootstrap: Bootstrap,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[P.jsonl...]")] = None,
    split: Split = "test",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show which role replies sound like, next to the meter's accuracy on the references.

    Args:
        files: Predictions, as for `rolellm score`; without any, the meter alone is measured.
    """
    from rolellm.evaluation.style import style_of

    found = style_of(files or [], config, split, data_dir, bootstrap)
    if as_json:
        print_json(found)
        return
    for warning in found["warnings"]:
        say(f"warning: {warning}", err=True)
    for language, one in found["languages"].items():
        _print(language, one)


def _print(language: str, found: Mapping[str, Any]) -> None:
    shown = {"the meter, on references": found["meter"]} | ({"replies": found["replies"]} if "replies" in found else {})
    columns = ("", "top-1 %", "top-5 %", "told from another role, same instruction %", "calibration error (ECE) %")
    rows = [
        (name, *(_percent(one[key]) for key in ("top1", "top5", "same_instruction")), f"{100 * one['ece']:.1f}")
        for name, one in shown.items()
    ]
    count, subset = len(found["roles"]), found["subset"].replace("_", "-")
    print_table(f"Which of {count} roles ({language}, {subset} rows; chance {100 / count:.1f} %)", columns, rows)
    parts = [one["by_role"] for one in shown.values()]
    by_role = [(role, *(_percent(part.get(role, {}).get("top1")) for part in parts)) for role in found["roles"]]
    print_table("Top-1 % by role", ("role", *shown), by_role)
    for name, one in shown.items():
        print_table(f"Who {name} sound like, %" if name == "replies" else f"Confusions of {name}, %", *_map(one))


def _map(found: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """All roles by all, or for many roles each with those that it is most often taken for."""
    lines = {role: (counts, sum(counts.values())) for role, counts in found["confusion"].items()}
    if len(lines) <= _MAP:
        heads = list(lines)
        return ("role", *heads), [
            (role, *(f"{100 * counts.get(other, 0) / total:.0f}" for other in heads))
            for role, (counts, total) in lines.items()
        ]
    return ("role", "taken for"), [
        (role, ", ".join(f"{other} {100 * count / total:.0f}" for other, count in list(counts.items())[:4]))
        for role, (counts, total) in lines.items()
    ]


def _percent(value: Mapping[str, Any] | None) -> str:
    return estimate_text(value, digits=1, scale=100, counted=True)
