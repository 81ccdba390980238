"""load_dataset("rolebench", …) as a notebook calls it."""

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import pytest
from datasets import get_dataset_config_names, get_dataset_split_names, load_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.core.errors import ReleaseNotFoundError, SettingsError
from rolellm.core.records import Row
from rolellm.data.rolebench.register import register
from rolellm.data.rolebench.release import Release, iter_rows
from rolellm.data.rolebench.schema import CONFIGS, get_config
from rolellm.data.rolebench.source import MissingFilesWarning, sample_folder

COLUMNS = [
    *("id", "role", "language", "subset", "question", "references", "reference_types", "raw_reference", "rolegpt"),
    "role_description",
]


def test_columns_are_those_of_the_contract(write_release):
    data = load_dataset("rolebench", "instruction-generalization-eng", data_dir=str(write_release()))
    assert list(data) == ["train", "test"]
    assert data["test"].column_names == COLUMNS
    fox, owl, specific = data["test"].to_list()
    assert fox["question"] == "Name  a fruit.\n"
    assert fox["raw_reference"] == "An apple."
    assert fox["rolegpt"] == "Grapes, sour."
    assert owl["rolegpt"] is None
    assert owl["references"] == ["A pear, in moonlight.", "Pears."]
    assert owl["reference_types"] == []
    assert owl["role_description"] == "You are an owl."
    assert specific["reference_types"] == ["script_agnostic", "script_based"]
    assert specific["raw_reference"] is None
    assert data["train"][2]["reference_types"] == ["script_based"]
    assert data["train"][0]["raw_reference"] == "Red."
    assert Row.from_columns(fox).references == ("Grapes, the sour ones.",)


@pytest.mark.parametrize("config", sorted(CONFIGS))
def test_every_config_of_the_sample_release_by_a_relative_data_dir(config, root, monkeypatch):
    """The sample is in the release's own layout, so every config reads from it."""
    monkeypatch.chdir(root / "src" / "rolellm" / "data" / "rolebench")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingFilesWarning)
        data = load_dataset("rolebench", config, data_dir="sample")
    assert all(split.num_rows > 0 for split in data.values())


def test_streaming_gives_the_same_rows(write_release):
    folder = str(write_release())
    eager = load_dataset("rolebench", data_dir=folder, split="test").to_list()
    assert list(load_dataset("rolebench", data_dir=folder, split="test", streaming=True)) == eager


_LEAVE_STREAMS = """
import os, sys
import datasets, rolellm
aborts = 0
for _ in range(20):
    child = os.fork()
    if not child:
        break
    aborts += os.waitpid(child, 0)[1] != 0
else:
    sys.exit(aborts)
rows = iter(datasets.load_dataset("rolebench", "sample", split="test", streaming=True))
next(rows)
"""


@pytest.mark.slow
def test_a_stream_that_is_left_early_does_not_abort_the_interpreter():
    """With files that are opened in Python, a process in seven is aborted."""
    subprocess.run([sys.executable, "-c", _LEAVE_STREAMS], check=True)


@pytest.mark.slow
def test_fingerprint_is_stable_over_rebuilds_and_changes_with_content(write_release, tmp_path):
    first = write_release()
    command = [sys.executable, "-c", _PRINT_FINGERPRINT]

    def fingerprints(folder: Path, home: str) -> list[str]:
        env = {**os.environ, "HF_HOME": str(tmp_path / home), "HF_DATASETS_CACHE": str(tmp_path / home / "d")}
        shown = subprocess.run([*command, str(folder)], env=env, capture_output=True, text=True, check=True)
        return shown.stdout.split()

    before = fingerprints(first, "home")
    built = next((tmp_path / "home" / "rolellm" / "rolebench").glob("*/rolebench/README.md"))
    built.unlink()
    assert fingerprints(first, "home") == before
    changed = write_release("changed", **{"profiles-eng/desc.json": json.dumps({"Fox": "You are another fox."})})
    assert fingerprints(changed, "home")[1] != before[1]


_PRINT_FINGERPRINT = """
import sys, rolellm
from datasets import load_dataset
data = load_dataset("rolebench", data_dir=sys.argv[1], split="test")
print(data._fingerprint, rolellm.data.rolebench.dataset_fingerprint("instruction-generalization-eng", sys.argv[1]))
"""


# `datasets` 4.7 leaves a file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_folder_of_that_name_does_not_get_in_the_way(write_release, tmp_path, monkeypatch):
    (tmp_path / "rolebench").mkdir()
    (tmp_path / "rolebench" / "data.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)
    assert load_dataset("rolebench", data_dir=str(write_release()), split="test").num_rows == 3
    assert load_dataset("./rolebench", split="train").column_names == ["a"]


def test_a_builder_has_the_name_where_datasets_was_imported_first(monkeypatch):
    original = inspect.unwrap(datasets.load_dataset_builder)
    monkeypatch.setattr(datasets, "load_dataset_builder", original)
    register()
    builder = datasets.load_dataset_builder("rolebench", "instruction-generalization-zh", data_dir=str(sample_folder()))
    assert builder.info.features.keys() >= {"role", "question", "references"}


def test_partial_release_warns_and_names_each_missing_file(write_release):
    base = "rolebench-eng/instruction-generalization"
    folder = write_release(**{f"{base}/general/train.jsonl": None, f"{base}/role_specific/train.jsonl": None})
    with pytest.warns(MissingFilesWarning) as caught:
        data = load_dataset("rolebench", data_dir=str(folder))
    assert list(data) == ["test"]
    assert f"{base}/general/train.jsonl" in str(caught[0].message)
    assert f"{base}/role_specific/train.jsonl" in str(caught[0].message)
    with pytest.warns(MissingFilesWarning):
        load_dataset("rolebench", data_dir=str(folder))


@pytest.mark.parametrize(
    ("config", "arguments", "words"),
    [
        pytest.param(None, {}, "data_dir.*ROLEBENCH_DIR.*Hub.*sample", id="no-source-and-offline"),
        pytest.param(None, {"data_dir": ""}, "Did you mean .*release", id="the-release's-parent"),
        pytest.param("instruction-generalisation-zh", {}, "did you mean instruction-generalization-zh", id="config"),
        pytest.param("sample", {"data_files": "x.jsonl"}, "takes data_dir=RELEASE", id="data-files"),
    ],
)
def test_what_cannot_be_loaded_names_the_way_out(config, arguments, words, write_release, tmp_path):
    write_release()
    if "data_dir" in arguments:
        arguments = {"data_dir": arguments["data_dir"] or str(tmp_path)}
    with pytest.raises((ReleaseNotFoundError, SettingsError, ValueError), match=words):
        load_dataset("rolebench", config, **arguments)


def test_strict_holds_instructions_out(write_release):
    base = "rolebench-eng/instruction-generalization"
    leaking = [
        {"role": "Owl", "question": "name a FRUIT.", "generated": ["Leaked."]},
        {"role": "Owl", "question": "Name a colour.", "generated": ["Kept."]},
    ]
    doubled = [
        {"role": "Fox", "question": " Fox, are you sly? ", "generated": ["Yes."], "type": ["script_based"]},
        {"role": "Fox", "question": "Fox, are you sly?", "generated": ["Twice."], "type": ["script_based"]},
    ]
    folder = write_release(**{f"{base}/general/train.jsonl": leaking, f"{base}/role_specific/test.jsonl": doubled})
    data = load_dataset("rolebench", "instruction-generalization-eng-strict", data_dir=str(folder))
    assert data["train"]["question"][:] == ["Name a colour.", "Fox, what hangs there?"]
    assert data["test"].num_rows == 3
    plain = load_dataset("rolebench", "instruction-generalization-eng", data_dir=str(folder))
    assert set(data["test"]["id"]) < set(plain["test"]["id"])


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
@pytest.mark.parametrize(
    ("config", "split", "rows"),
    [
        ("instruction-generalization-eng", "test", 4750),
        ("role-generalization-eng", "test", 5000 + 2534),
        ("instruction-generalization-zh", "train", 5933 + 1535),
        ("instruction-generalization-zh", "test", 1451 + 239),
        ("roles", "train", 95),
        ("instructions", "train", 1500),
    ],
)
def test_real_release_row_counts(config, split, rows, real_release):
    data = load_dataset("rolebench", config, split=split, data_dir=str(real_release))
    assert data.num_rows == rows
    if "id" in data.column_names:
        assert len(set(data["id"])) == rows


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
def test_real_release_joins(real_release):
    data = load_dataset("rolebench", "role-generalization-eng", split="test", data_dir=str(real_release))
    general = data.filter(lambda row: row["subset"] == "general")
    assert general.num_rows == sum(target is not None for target in general["raw_reference"])
    specific = data.filter(lambda row: row["subset"] == "role_specific")
    assert sum(reply is not None for reply in specific["rolegpt"]) == 696
    assert all(len(row["references"]) == len(row["reference_types"]) for row in specific)
    strict = load_dataset("rolebench", "role-generalization-eng-strict", split="test", data_dir=str(real_release))
    assert strict.num_rows == 5000 + 2321


_TEXT = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(_TEXT, _TEXT, st.lists(_TEXT, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_any_text_is_kept_as_released(rows, write_release, tmp_path_factory):
    released = [{"role": role, "question": question, "generated": replies} for role, question, replies in rows]
    folder = write_release(
        tmp_path_factory.mktemp("any").name, **{"rolebench-eng/instruction-generalization/general/test.jsonl": released}
    )
    release = Release(folder)
    read = list(iter_rows(release, get_config("instruction-generalization-eng"), "test"))[: len(released)]
    assert [(row["role"], row["question"], row["references"]) for row in read] == rows
    assert len({row["id"] for row in read}) == len(read)


def test_config_and_split_names():
    assert get_dataset_config_names("rolebench") == list(CONFIGS)
    assert get_dataset_split_names("rolebench", "sample") == ["train", "test"]
