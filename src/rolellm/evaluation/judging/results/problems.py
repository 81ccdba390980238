"""What a reader must know before the figures of a judging run: whether it is valid, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]


def is_valid(result: Result) -> bool:
    """Whether judgements were made, and no more of them than allowed are without a verdict."""
    unscored = result["diagnostics"]["unscored"]
    return bool(unscored["of"]) and unscored["share"] <= unscored["limit"]


def problems(result: Result) -> list[str]:
    """In words: first what makes the run invalid, then what its figures must be read with."""
    return [*_unscored(result), *_canaries(result), *_self_judged(result), *_unanswered(result), *_uncompared(result)]


def _unscored(result: Result) -> list[str]:
    unscored = result["diagnostics"]["unscored"]
    if not unscored["of"]:
        return ["nothing was judged"]
    if unscored["share"] <= unscored["limit"]:
        return []
    return [
        f"{unscored['count']:,} of {unscored['of']:,} judgements ({unscored['share']:.1%}) brought no verdict; "
        f"more than {unscored['limit']:.1%} makes a run invalid"
    ]


def _canaries(result: Result) -> list[str]:
    """A canary's answer is no answer: where it wins, the judge can be won without one."""
    found = []
    for one in result["models"]:
        if one["kind"] != "canary":
            continue
        called = one["name"] if one["name"].startswith("canary") else f"canary {one['name']}"
        copied = result["diagnostics"]["canaries"][one["name"]]["copied"]
        if copied is not None and copied["mean"]:
            found.append(
                f"the judge repeated a verdict from {called} in {copied['mean']:.1%} of the {copied['n']:,} judgements "
                "that showed it: text inside an answer can bind this judge"
            )
        pairs, lists = one["pairwise"] or {}, one["listwise"] or {}
        for estimate, where in ((pairs.get("win_rate"), "pairs"), (lists.get("win_rate"), "lists")):
            if estimate is not None and _low(estimate) > 0.5:
                found.append(
                    f"{called} wins {estimate['mean']:.1%}{_ends(estimate)} of its {where} against "
                    f"{result['baseline']}: this judge prefers what is no answer, so its verdicts say little of quality"
                )
        strength = lists.get("strength")
        if result["baseline"] is None and strength is not None and _low(strength) > 0:
            found.append(
                f"{called} is ranked above the mean of all in the lists: this judge prefers what is no "
                "answer, so its verdicts say little of quality"
            )
    return found


def _self_judged(result: Result) -> list[str]:
    return [
        f"the judge {judge['name']} is of the same model family ({judge['family']}) as {', '.join(judge['flagged'])}: "
        "judges are known to favour their own"
        for judge in result["judges"]
        if judge["flagged"]
    ]


def _unanswered(result: Result) -> list[str]:
    return [
        f"{one['name']} answered {one['answered']:,} of {result['rows']:,} rows: its figures are of those alone"
        for one in result["models"]
        if one["answered"] < result["rows"]
    ]


def _uncompared(result: Result) -> list[str]:
    """What was to be judged and was not: a table without its line would pass over it in silence."""
    if not is_valid(result):
        return []
    asked = {design for judge in result["judges"] for design in judge["prompts"] or ()}
    lists = result["diagnostics"]["judgements"]["listwise"]
    found = ["no list was judged: there is no row that all answered"] if "listwise" in asked and not lists else []
    return found + [
        f"{one['name']} has no verdict: there is no row that both it and {result['baseline'] or 'all others'} "
        "answered, or no request brought one"
        for one in result["models"]
        if one["kind"] == "model" and one["pairwise"] is None and one["listwise"] is None
    ]


def _low(estimate: Mapping[str, Any]) -> float:
    """The interval's lower end; where one question gives none, nothing is certain."""
    return float("-inf") if estimate["ci95"] is None else float(estimate["ci95"][0])


def _ends(estimate: Mapping[str, Any]) -> str:
    low, high = estimate["ci95"]
    return f" [{low:.1%}, {high:.1%}]"
