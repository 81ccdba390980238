"""Agreement between judges and people: recovered where it is known, and never claimed where there is none."""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from rolellm.core.errors import SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.judging.people.agreement import ENOUGH_ROWS, measure_agreement
from rolellm.judging.people.labels import (
    Label,
    hash_content,
    label_path,
    select_answers,
)
from rolellm.judging.records import Judgement, JudgeRun, SystemKind, compute_mid_ranks, read_run
from rolellm.scoring.statistics.agreement import compute_cohen_kappa

from ...judge_runs import make_comparison, make_rows, write_run

TWO: Mapping[str, SystemKind] = {"quill": "model", "harbour": "baseline"}
FOUR: Mapping[str, SystemKind] = {"quill": "model", "marrow": "model", "harbour": "baseline", "null": "canary"}
#: Ranks of (quill, harbour) for better, tie and worse.
SAID = {1: (1.0, 2.0), 0: (1.5, 1.5), -1: (2.0, 1.0)}


def write_labels(run: JudgeRun, who: str, ranks: Mapping[str, Mapping[str, float] | None]) -> None:
    """All at once."""
    rows = {row.id: row for row in run.comparison.rows}
    labels = []
    for row, given in ranks.items():
        names = tuple(given or TWO)
        about = hash_content(rows[row], select_answers(run.comparison, rows[row], names))
        said = None
        if given is not None:
            # A place is a whole number from 1.
            places = sorted(set(given.values()))
            said = {f"place of {name}": str(places.index(rank) + 1) for name, rank in given.items()}
        labels.append(asdict(Label(row, names, said, about)))
    write_jsonl(label_path(run.folder, who), labels)


def verdicts(row: str, judge: str, said: int, names: tuple[str, ...] = ("quill", "harbour")) -> list[Judgement]:
    """The same verdict on the first against the second in both orders."""
    return [
        Judgement(row, judge, "pairwise", names, SAID[said]),
        Judgement(row, judge, "pairwise", names[::-1], SAID[said][::-1]),
    ]


def lists(row: str, judge: str, ranks: Mapping[str, float]) -> Judgement:
    return Judgement(row, judge, "listwise", tuple(ranks), tuple(ranks.values()))


def make(folder: Path, count: int, kinds: Mapping[str, SystemKind], judgements: Iterable[Judgement]) -> JudgeRun:
    return read_run(write_run(folder, make_comparison(make_rows(count), kinds), judgements))


def ranked(chance: random.Random, names: Sequence[str], quality: Mapping[str, float], noise: float) -> dict[str, float]:
    """Ranks by quality and noise, close ones tied."""
    scores = tuple(round(-quality[name] - chance.gauss(0, noise)) for name in names)
    return dict(zip(names, compute_mid_ranks(scores), strict=True))


@pytest.mark.parametrize("agreed", [0.0, 0.8])
def test_a_known_kappa_is_recovered_within_its_interval(tmp_path: Path, agreed: float) -> None:
    """Who copies a verdict with probability p, and else draws one anew, agrees with it beyond chance by p."""
    chance = random.Random(agreed)
    rows = [row.id for row in make_rows(600)]
    said = {row: chance.choice([1, 0, -1]) for row in rows}
    # A baseline whose name comes last; in the other tests it comes first.
    kinds: dict[str, SystemKind] = {"quill": "model", "wharf": "baseline"}
    run = make(tmp_path, 600, kinds, [one for row in rows for one in verdicts(row, "judge", said[row], (*kinds,))])
    labels = {}
    for row in rows:
        verdict = said[row] if chance.random() < agreed else chance.choice([1, 0, -1])
        labels[row] = dict(zip(kinds, SAID[verdict], strict=True))
    write_labels(run, "anna", labels)

    found = measure_agreement(run).to_dict()
    (one,) = found["judge_human"]
    kappa = one["kappa"]
    assert (one["a"], one["b"], one["rows"], kappa["n"], kappa["questions"]) == ("judge", "anna", 600, 600, 600)
    assert kappa["ci95"][0] < agreed < kappa["ci95"][1]
    assert kappa["ci95"][1] - kappa["ci95"][0] < 0.15
    assert found["human_human"] == [] and found["fleiss_kappa"] is None


def test_people_who_copy_one_truth_agree_by_its_square(tmp_path: Path) -> None:
    chance = random.Random(7)
    rows = [row.id for row in make_rows(500)]
    truth = {row: chance.choice([1, 0, -1]) for row in rows}
    run = make(tmp_path, 500, TWO, [one for row in rows for one in verdicts(row, "judge", truth[row])])
    for who in ("anna", "bela", "cem"):
        said = {row: truth[row] if chance.random() < 0.7 else chance.choice([1, 0, -1]) for row in rows}
        write_labels(run, who, {row: dict(zip(TWO, SAID[said[row]], strict=True)) for row in rows})
    found = measure_agreement(run).to_dict()
    kappas = {one["a"] + one["b"]: one["kappa"]["mean"] for one in found["human_human"]}
    assert kappas == dict.fromkeys(("annabela", "annacem", "belacem"), pytest.approx(0.49, abs=0.1))
    assert found["fleiss_kappa"]["mean"] == pytest.approx(0.49, abs=0.07) and found["fleiss_kappa"]["n"] == 500


def test_lists_are_compared_pair_by_pair_and_canaries_left_out(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [row.id for row in make_rows(60)]
    names = ("quill", "marrow", "harbour")
    quality = {"quill": 1.0, "marrow": 0.0, "harbour": 0.5}
    people = {row: ranked(chance, names, quality, 1.0) for row in rows}
    judged = {row: ranked(chance, names, quality, 1.0) for row in rows}
    # The canary wins every list; without it, the lists are as they were.
    shown = [lists(row, "judge", {"null": 1.0} | {n: r + 1 for n, r in judged[row].items()}) for row in rows]
    run = make(tmp_path, 60, FOUR, shown)
    write_labels(run, "anna", people)
    (one,) = measure_agreement(run).to_dict()["judge_human"]

    def sign(ranks: Mapping[str, float], first: str, second: str) -> int:
        return (ranks[second] > ranks[first]) - (ranks[second] < ranks[first])

    # In both directions, but for those against the baseline.
    pairs = [(a, b) for a, b in itertools.permutations(names, 2) if a != "harbour"]
    both = [(row, *pair) for row in rows for pair in pairs]
    kappa = compute_cohen_kappa(
        [sign(judged[r], a, b) for r, a, b in both], [sign(people[r], a, b) for r, a, b in both]
    )
    assert one["kappa"]["mean"] == pytest.approx(kappa.value) and one["kappa"]["n"] == 180


def test_rotations_that_contradict_each_other_are_a_tie_and_a_pair_counts_before_lists(tmp_path: Path) -> None:
    rows = [row.id for row in make_rows(40)]
    ranks = {"quill": 1.0, "marrow": 2.0, "harbour": 3.0}
    opposite = {"quill": 3.0, "marrow": 2.0, "harbour": 1.0}
    tied = dict.fromkeys(ranks, 2.0)
    shown = []
    for number, row in enumerate(rows):
        shown += [lists(row, "torn", ranks), lists(row, "torn", opposite)]
        shown += [lists(row, "both", opposite), *verdicts(row, "both", -1 if number % 2 else 1)]
    run = make(tmp_path, 40, FOUR, shown)
    write_labels(run, "anna", {row: tied if number % 2 else ranks for number, row in enumerate(rows)})
    write_labels(
        run,
        "bela",
        {row: dict(zip(TWO, SAID[-1 if number % 2 else 1], strict=True)) for number, row in enumerate(rows)},
    )
    found = {(one["a"], one["b"]): one for one in measure_agreement(run).to_dict()["judge_human"]}
    assert found["torn", "anna"]["kappa"]["mean"] == pytest.approx(0.0)
    assert found["both", "bela"]["kappa"]["mean"] == 1.0


def test_few_rows_and_skipped_ones_are_said(tmp_path: Path) -> None:
    rows = [row.id for row in make_rows(40)]
    run = make(tmp_path, 40, TWO, [one for row in rows for one in verdicts(row, "judge", 1)])
    better, tie = (dict(zip(TWO, SAID[said], strict=True)) for said in (1, 0))
    write_labels(run, "anna", {row: tie if number < 10 else better for number, row in enumerate(rows)})
    write_labels(run, "bela", {row: None if number < 11 else better for number, row in enumerate(rows)})
    result = measure_agreement(run)
    found = result.to_dict()
    anna, bela = found["annotators"]
    assert (anna["labelled"], anna["skipped"], bela["labelled"], bela["skipped"]) == (40, 0, 29, 11)
    shared = {(one["a"], one["b"]): one["rows"] for one in (*found["judge_human"], *found["human_human"])}
    assert shared == {("judge", "anna"): 40, ("judge", "bela"): 29, ("anna", "bela"): 29}
    assert ENOUGH_ROWS == 30 and len(result.notes()) == 2 and all("29 rows" in note for note in result.notes())
    # A judge and a person who say one and the same of everything agree by chance alone, so there is no kappa.
    (sure,) = [one for one in found["judge_human"] if one["b"] == "bela"]
    assert sure["kappa"] is None


def test_nobody_having_labelled_anything_is_said(tmp_path: Path) -> None:
    run = make(tmp_path, 3, TWO, [])
    with pytest.raises(SettingsError, match="nobody has labelled anything yet"):
        measure_agreement(run).to_dict()
