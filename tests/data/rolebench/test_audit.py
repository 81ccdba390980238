"""The audit finds what is planted in a copy of the sample, where it is planted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.data.rolebench.audit import audit_release
from rolellm.data.rolebench.source import sample_folder

FOLDER = "rolebench-zh/role_specific"
TEST = f"{FOLDER}/test.jsonl"
EN, ROLES = "rolebench-eng/instruction-generalization", "rolebench-eng/role-generalization"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_folder(), tmp_path / "release"))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _append(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _count(root: Path) -> dict[tuple[str, str], int]:
    return {(finding.file, finding.check): finding.count for finding in audit_release(root).findings}


def _copy_a_pair(root: Path) -> None:
    _append(root / TEST, _read(root / FOLDER / "train.jsonl")[0])


def _repeat_a_row(root: Path) -> None:
    row = _read(root / TEST)[0]
    _append(root / TEST, {**row, "question": f" {row['question']} "})


def _copy_a_role(root: Path) -> None:
    _append(root / ROLES / "role_specific/train.jsonl", _read(root / ROLES / "role_specific/test.jsonl")[0])


def _copy_a_baseline(root: Path) -> None:
    shutil.copy(root / EN / "general/rolegpt_baseline.jsonl", root / ROLES / "general/rolegpt_baseline.jsonl")


def _ask_something_new(root: Path) -> None:
    _append(root / TEST, {**_read(root / TEST)[0], "question": "新的问题？"})


def _add_a_column(root: Path) -> None:
    _append(root / TEST, {**_read(root / TEST)[0], "question": "新的问题？", "note": "x"})


def _quote_the_baseline(root: Path) -> None:
    row = _read(root / FOLDER / "rolegpt_baseline.jsonl")[0]
    _append(root / TEST, {**row, "type": "script_based"})


@pytest.mark.parametrize(
    ("plant", "check", "file"),
    [
        pytest.param(_copy_a_pair, "question in train", TEST, id="question"),
        pytest.param(_copy_a_role, "held-out role in train", f"{ROLES}/role_specific/test.jsonl", id="role"),
        pytest.param(_repeat_a_row, "duplicate (role, question)", TEST, id="repeat but for white space"),
        pytest.param(
            _copy_a_baseline,
            "baseline file is another config's",
            f"{ROLES}/general/rolegpt_baseline.jsonl",
            id="another config's baseline",
        ),
        pytest.param(_ask_something_new, "baseline missing", TEST, id="no baseline"),
        pytest.param(_quote_the_baseline, "baseline among the references", TEST, id="baseline is a reference"),
        pytest.param(_add_a_column, "inconsistent schema", TEST, id="another column"),
    ],
)
def test_what_is_planted_is_found_there(release: Path, plant: Callable[[Path], None], check: str, file: str) -> None:
    before = _count(release).get((file, check), 0)
    plant(release)
    assert _count(release)[file, check] > before


def test_bad_rows_are_listed_and_stop_nothing(release: Path) -> None:
    with (release / TEST).open("a", encoding="utf-8") as stream:
        stream.write('{"role": "x"}\nno JSON\n')
    assert len(audit_release(release).unread) == 2


#: File, check, count: of the part of the release that lacks the English train files.
REAL = {
    (f"{EN}/role_specific/test.jsonl", "duplicate (role, question)"): 25,
    (f"{ROLES}/role_specific/test.jsonl", "inconsistent schema"): 500,
    (f"{ROLES}/role_specific/test.jsonl", "duplicate (role, question)"): 213,
    (f"{ROLES}/role_specific/test.jsonl", "(role, question) in another test"): 696,
    (f"{ROLES}/role_specific/test.jsonl", "baseline missing"): 1_838,
    (f"{ROLES}/role_specific/rolegpt_baseline.jsonl", "baseline file is another config's"): 4_750,
    ("rolebench-zh/general/test.jsonl", "question in train"): 1_451,
    ("rolebench-zh/general/test.jsonl", "baseline among the references"): 72,
    (TEST, "question in train"): 7,
    (TEST, "(role, question) in train"): 7,
    (TEST, "answer in train"): 5,
    (TEST, "inconsistent schema"): 239,
    (f"{FOLDER}/train.jsonl", "duplicate (role, question)"): 2,
}


@pytest.mark.realdata
def test_the_faults_of_the_release_are_counted(real_release: Path) -> None:
    assert _count(real_release) == REAL
