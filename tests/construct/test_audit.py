"""The audit finds what is planted in a copy of the sample, and nothing of the kind in the sample itself."""

import json
import shutil
from pathlib import Path

import pytest

from rolellm.construct.audit import audit
from rolellm.rolebench.source import sample_folder

FOLDER = "rolebench-zh/role_specific"
TEST = f"{FOLDER}/test.jsonl"


def _read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _counts(root: Path) -> dict[str, int]:
    return {item.check: item.count for item in audit(root).findings if item.file == TEST}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_folder(), tmp_path / "release"))


def test_planted_faults_are_counted_and_located(release: Path) -> None:
    before = _counts(release)
    rows = _read(release / TEST)
    train = _read(release / FOLDER / "train.jsonl")
    role = rows[0]["role"]
    planted = [
        train[0],
        {**rows[0], "question": f" {rows[0]['question']} "},
        {
            "role": role,
            "question": "新的问题一？",
            "generated": ["作为一个语言模型，我没有感情。"],
            "type": "x",
        },
        {"role": role, "question": "新的问题二？", "generated": ["This whole reply is in English."], "type": "x"},
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, *planted])
    (release / TEST).write_text(text, "utf-8")
    after = _counts(release)
    more = {check: count - before.get(check, 0) for check, count in after.items()}
    assert more["(role, question) in train"] == 1
    assert more["question in train"] == 1
    assert more["duplicate, white space stripped"] == 1
    assert "duplicate (role, question)" not in after
    assert more["reference says that it is an AI"] == 1
    assert more["reference is in the wrong language"] == 1
    leak = next(item for item in audit(release).findings if item.file == TEST and item.check == "question in train")
    assert len(rows) + 1 in leak.lines


def test_the_sample_has_no_leaks_and_no_duplicates() -> None:
    """Its test questions and the replies to them fill in the frames of train, which is nearly the same text."""
    found = [
        item.check for item in audit(sample_folder()).findings if "train" in item.check or "duplicate" in item.check
    ]
    assert {*found} <= {"question nearly in train", "answer nearly in train"}
