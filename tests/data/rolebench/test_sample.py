"""The embedded sample keeps what it promises, and the repository's built copy of it is up to date."""

import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard

import rolellm
from rolellm.core.text import fold


@pytest.fixture(scope="module")
def sample():
    return {name: split.to_list() for name, split in load_dataset("rolebench", "sample").items()}


def test_no_question_of_test_stands_in_train_and_no_baseline_is_a_reference(sample):
    trained = {fold(row["question"]) for row in sample["train"]}
    assert not trained & {fold(row["question"]) for row in sample["test"]}
    assert all(row["rolegpt"] and row["rolegpt"] not in row["references"] for row in sample["test"])


def test_built_copy_is_up_to_date(root):
    """Rebuild with `python dataset_scripts/rolebench/build.py --config sample` when this fails."""
    folder = root / "dataset_scripts" / "rolebench"
    assert rolellm.data.rolebench.dataset_fingerprint("sample") in DatasetCard.load(folder / "README.md").text
    built = load_dataset(str(folder), "sample")
    assert {name: split.to_list() for name, split in built.items()} == {
        name: split.to_list() for name, split in load_dataset("rolebench", "sample").items()
    }


@pytest.mark.slow
@pytest.mark.realdata
def test_no_text_of_the_release_is_in_the_sample(real_release, sample):
    texts = {text for rows in sample.values() for row in rows for text in (row["question"], *row["references"])}
    for path in real_release.rglob("*.jsonl"):
        content = path.read_text(encoding="utf-8")
        assert [text for text in texts if len(text) > 12 and text in content] == [], path
