"""Who takes part: files named and joined, the baseline found, the sample drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import PredictionError, SettingsError
from rolellm.core.records import Language, Row
from rolellm.judging.records import Comparison
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import ECHO, OTHER_ROLE, make_comparison, parse_sources, plant_losers
from rolellm.scoring.predictions import MatchFinding, read_predictions

ROWS = [
    Row(f"r{n}", "Fox", "en", "general", f"Question {n}?", ("Aye.",), rolegpt=f"Base {n}" if n < 8 else None)
    for n in range(10)
]


def write(path: Path, rows: list[Row] = ROWS, said: str = "Says", model: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": row.id, "prediction": f"{said} {row.id}"}) + "\n" for row in rows))
    if model is not None:
        path.with_name(path.name + ".meta.json").write_text(json.dumps({"model": model}))
    return path


def compared(
    *given: Path | str, rows: list[Row] = ROWS, **settings: Any
) -> tuple[Comparison, list[tuple[str, MatchFinding]]]:
    predictions = {name: read_predictions(paths) for name, paths in parse_sources([str(one) for one in given]).items()}
    return make_comparison(rows, predictions, JudgingSettings(**settings), "sample/test")


def test_the_released_replies_are_the_baseline(tmp_path: Path) -> None:
    found, findings = compared(write(tmp_path / "a.jsonl"), canaries=False)
    systems = [(one.name, one.kind, one.family) for one in found.systems]
    assert systems == [("a", "model", None), ("RoleGPT", "baseline", "gpt")]
    assert [row.id for row in found.rows] == [f"r{n}" for n in range(8)]
    assert found.answers["RoleGPT"]["r3"] == "Base 3" and found.answers["a"]["r3"] == "Says r3"
    assert findings == []


def test_a_sidecar_tells_the_model_and_its_family(tmp_path: Path) -> None:
    found, _ = compared(write(tmp_path / "a.jsonl", model="org/Llama-2-7b"), canaries=False)
    assert (found.systems[0].model, found.systems[0].family) == ("org/Llama-2-7b", "llama")
    assert found.systems[0].source["files"][0]["file"] == "a.jsonl"


def test_a_system_or_another_file_as_the_baseline(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl", said="Sings")
    inside, _ = compared(a, b, baseline="b", canaries=False)
    outside, _ = compared(a, baseline=str(b), canaries=False)
    for found in (inside, outside):
        assert {one.name: one.kind for one in found.systems} == {"a": "model", "b": "baseline"}
        assert len(found.rows) == 10
    none, _ = compared(a, b, baseline="none", canaries=False)
    assert none.baseline is None


def test_a_larger_sample_holds_the_smaller_in_the_datas_order(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl")
    kept = [[row.id for row in compared(a, limit=size)[0].rows] for size in (3, 5, 99)]
    assert [len(ids) for ids in kept] == [3, 5, 8]
    assert set(kept[0]) < set(kept[1]) < set(kept[2])
    assert all(ids == sorted(ids) for ids in kept)
    mixed = compared(a, rows=ROWS[::-1], limit=3)[0].rows
    assert {row.id for row in mixed} == set(kept[0])
    assert kept[1] != [row.id for row in compared(a, limit=5, seed=1)[0].rows]
    # Half a surrogate pair is mended.
    (tmp_path / "a.jsonl").write_text('{"id": "r1", "prediction": "so \\ud800"}\n')
    found, findings = compared(tmp_path / "a.jsonl", canaries=False)
    assert found.answers["a"] == {"r1": "so \ufffd"}
    assert "without a prediction" in str(findings[0][1])


def spoken(number: int, role: str, question: str, language: Language = "en") -> Row:
    return Row(f"r{number}", role, language, "general", question, ("Aye.",), rolegpt=f"{role} on {question}")


def test_a_planted_loser_is_another_roles_reply_to_the_same_question(tmp_path: Path) -> None:
    rows = [spoken(n, role, f"Question {n // 2}?") for n, role in enumerate(["Fox", "Owl"] * 40)]
    rows += [spoken(80, "Fox", "Alone?"), spoken(81, "狐狸", "为什么？", "zh")]
    found, _ = compared(write(tmp_path / "a.jsonl", rows), rows=rows)
    losers = found.answers[OTHER_ROLE]
    assert len(losers) == 50 and [one.kind for one in found.systems if one.name == OTHER_ROLE] == ["canary"]
    every = plant_losers(rows, {row.id: row.rolegpt or "" for row in rows}, rows, most=100)
    assert losers.items() <= every.items()
    for row in rows[:80]:
        assert every[row.id] == f"{'Owl' if row.role == 'Fox' else 'Fox'} on {row.question}"
    assert every["r80"].startswith("Owl on ") and "r81" not in every
    # A baseline of one's own may deserve to lose.
    b = write(tmp_path / "b.jsonl", rows)
    assert OTHER_ROLE not in compared(tmp_path / "a.jsonl", b, rows=rows, baseline="b")[0].answers


BARE = [Row(row.id, row.role, row.language, row.subset, row.question, row.references) for row in ROWS]


@pytest.mark.parametrize(
    ("given", "settings", "problem"),
    [
        pytest.param(("x/a.jsonl", "y/a.jsonl"), {}, r"FIRST=.*a\.jsonl SECOND=", id="two files of one name"),
        pytest.param(("=x/a.jsonl",), {}, r"expected P\.jsonl or NAME=", id="no name"),
        pytest.param(("x/a.jsonl", "a=y/a.jsonl"), {}, "named after its file", id="a file's name"),
        pytest.param(("RoleGPT=x/a.jsonl",), {}, "name of the rows' own baseline", id="the baseline's name"),
        pytest.param((f"{ECHO}=x/a.jsonl",), {}, "name of a canary", id="a canary's name"),
        pytest.param(("x/a.jsonl",), {"baseline": "y/a.jsonl"}, "baseline would have the name", id="its own baseline"),
        pytest.param(("x/a.jsonl",), {"baseline": "a"}, "nothing to be compared with", id="alone"),
        pytest.param(("x/a.jsonl",), {"rows": BARE}, "no released RoleGPT reply.*--baseline", id="no RoleGPT"),
        pytest.param(("x/a.jsonl",), {"baseline": "gpt9"}, "no baseline 'gpt9': expected rolegpt", id="no baseline"),
        pytest.param(("no.jsonl",), {}, "not a file", id="no file"),
        pytest.param(("lone.jsonl",), {}, "no row of sample/test has two answers", id="other rows"),
    ],
)
def test_what_cannot_be_compared_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], settings: dict[str, Any], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("x/a.jsonl"))
    write(Path("y/a.jsonl"))
    write(Path("lone.jsonl"), ROWS[8:])
    with pytest.raises((SettingsError, PredictionError), match=problem):
        compared(*given, **settings)
