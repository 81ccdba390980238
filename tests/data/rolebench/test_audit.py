"""The audit finds what is planted in a copy of the sample, where it is planted."""

import json
import shutil
from pathlib import Path

import pytest

from rolellm.data.rolebench.audit import audit_release
from rolellm.data.rolebench.source import sample_folder

FOLDER = "rolebench-zh/role_specific"
TEST = f"{FOLDER}/test.jsonl"
EN, ROLES = "rolebench-eng/instruction-generalization", "rolebench-eng/role-generalization"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_folder(), tmp_path / "release"))


def _count(root: Path) -> dict[tuple[str, str], int]:
    return {(finding.file, finding.check): finding.count for finding in audit_release(root).findings}


ROLE_TEST, BASELINE = f"{ROLES}/role_specific/test.jsonl", "general/rolegpt_baseline.jsonl"
ZH_BASELINE, NEW = f"{FOLDER}/rolegpt_baseline.jsonl", {"question": "新的问题？"}


@pytest.mark.parametrize(
    ("source", "file", "changed", "check", "place"),
    [
        pytest.param(f"{FOLDER}/train.jsonl", TEST, {}, "question in train", TEST, id="question"),
        pytest.param(ROLE_TEST, ROLE_TEST.replace("test", "train"), {}, "held-out role in train", ROLE_TEST, id="role"),
        pytest.param(TEST, TEST, {"answer": "x"}, "duplicate (role, question)", TEST, id="repeat"),
        pytest.param(TEST, TEST, NEW, "baseline missing", TEST, id="no baseline"),
        pytest.param(TEST, TEST, NEW | {"note": "x"}, "inconsistent schema", TEST, id="another column"),
        pytest.param(ZH_BASELINE, TEST, {"type": "a"}, "baseline among the references", TEST, id="a reference"),
    ],
)
def test_what_is_planted_is_found_there(
    source: str, file: str, changed: dict[str, str], check: str, place: str, release: Path
) -> None:
    before = _count(release).get((place, check), 0)
    row, *_ = (json.loads(line) for line in (release / source).read_text("utf-8").splitlines())
    (release / file).parent.mkdir(parents=True, exist_ok=True)
    with (release / file).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row | changed, ensure_ascii=False) + "\n")
    assert _count(release)[place, check] > before


def test_another_configs_baseline_is_found(release: Path) -> None:
    shutil.copy(release / EN / BASELINE, release / ROLES / BASELINE)
    assert _count(release)[f"{ROLES}/{BASELINE}", "baseline file is another config's"] > 0


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
