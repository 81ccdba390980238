"""load_dataset("rolebench", …) as a notebook calls it: the sample, the release, its script dialogue, and the Hub."""

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import get_dataset_config_names, get_dataset_split_names, load_dataset
from huggingface_hub import DatasetCard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rolellm
from rolellm.core.errors import DataError, ReleaseNotFoundError, SettingsError
from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.data.rolebench.register import register
from rolellm.data.rolebench.release import Release, iter_rows, load_profiles, split_catchphrases
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


_LEAVE_STREAM = """
import datasets, rolellm
rows = iter(datasets.load_dataset("rolebench", "sample", split="test", streaming=True))
next(rows)
"""


@pytest.mark.slow
def test_a_stream_that_is_left_early_does_not_disturb_the_end_of_the_process():
    """With files that are opened in Python, each says so, and one in seven is aborted."""
    done = subprocess.run([sys.executable, "-c", _LEAVE_STREAM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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


# --- the sample


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


# --- damaged releases


TEST = "rolebench-eng/instruction-generalization/general/test.jsonl"
GOOD = {"role": "Fox", "question": "Name a tree.", "generated": ["An oak."]}
LINE = json.dumps(GOOD)


def add_row(**row: Any) -> str:
    """A good line, and one with another row."""
    return f"{LINE}\n{json.dumps({'role': 'Fox', 'question': 'q', 'generated': ['a', 'b']} | row)}\n"


DAMAGE = [
    pytest.param(f"{LINE}\nnot json\n{LINE}\n", 2, "not valid JSON", id="broken-json"),
    pytest.param(f'{LINE}\n{{"question": "q", "generated": ["a"]}}\n', 2, "at role: Field required", id="no-role"),
    pytest.param(add_row(type=["script_based"]), 2, r"one `type` a reply \(2\)", id="types-do-not-match"),
    pytest.param(add_row(generated=["a\ud800"]), 2, r"U\+D800", id="half-a-surrogate"),
]


@pytest.mark.parametrize(("content", "line", "words"), DAMAGE)
def test_damage_names_file_line_and_expectation(content, line, words, write_release):
    folder = write_release(**{TEST: content})
    with pytest.raises(DataError, match=words) as caught:
        load_dataset("rolebench", data_dir=str(folder))
    assert caught.value.path == folder / TEST
    assert caught.value.line == line
    assert "rolellm data audit" in str(caught.value)


SURROGATES = (
    '{"instruction": "Dig\\ud800.", "target": "a", "role": "Fox", "question": "Q\\ud800", "generated": ["a"]}\n'
)
DESCRIPTIONS = "profiles-eng/desc.json"


@pytest.mark.filterwarnings("ignore:rolebench 'instructions'")
@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        pytest.param(DESCRIPTIONS, '{"Fox": "\\ud800"}', "half a surrogate", id="half-a-surrogate"),
        pytest.param(TEST, "", "the file is empty", id="empty"),
        pytest.param(TEST.replace("test", "rolegpt_baseline"), SURROGATES, "half a", id="baseline"),
    ],
)
def test_any_file_that_is_not_as_published_is_named(path, content, words, write_release):
    folder = write_release(**{path: content})
    with pytest.raises(DataError, match=words) as caught:
        load_dataset("rolebench", "instructions" if path.startswith("instr") else None, data_dir=str(folder))
    assert caught.value.path == folder / path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A fox.", ("A fox.", [])),
        ('A fox. Your catchphrase is: "Sour!"', ("A fox.", ["Sour!"])),
        ('A fox. Your catchphrases are: "Sour!" / "A-ha?"', ("A fox.", ["Sour!", "A-ha?"])),
        ("一只狐狸。 Your catchphrases are: “酸！” / “哈”", ("一只狐狸。", ["酸！", "哈"])),
    ],
)
def test_split_catchphrases(text, expected):
    assert split_catchphrases(text) == expected


# --- script dialogue


CONFIG = "instruction-generalization-eng"


def path(role: str) -> str:
    return f"profiles-eng/profiles-eng-{role}.jsonl"


def line(role: str, content: str, act: Any = 0, number: int = 0) -> dict[str, Any]:
    return {"role": role, "content": content, "act_id": act, "diag_id": number}


FOX = [line("scene", "A vineyard."), line("Crow", "Sing!", 0, 1), line("Fox", "No.", 0, 2), line("Fox", "Sour!", 1, 0)]
OWL = [line("Fox", "Awake?"), line("Owl", "Ever.", 0, 1)]


def test_the_sample_is_read_whole_and_in_order() -> None:
    profiles = load_profiles("sample")
    roles = [(profile.role, profile.language) for profile in profiles]
    assert roles == [("Long John Silver", "en"), ("Queen of Hearts", "en"), ("鲁智深", "zh"), ("诸葛亮", "zh")]
    for profile in profiles:
        told = {turn.speaker for turn in profile.turns if turn.kind == "narration"}
        assert told == ({"scene", "narrator"} if profile.language == "en" else {"旁白"})
        assert any(map(profile.owns, profile.turns))
        assert profile.description


@pytest.mark.parametrize(
    ("asked", "file", "speaker"),
    [
        pytest.param("Dr. Frank-N-Furter", "Dr Frank-N-Furter", "DR. FRANK N FURTER", id="punctuation and case"),
        pytest.param("Narrator", "Narrator", "narrator", id="a narrator who is the role"),
    ],
)
def test_names_need_not_be_spelled_alike(write_release: Any, asked: str, file: str, speaker: str) -> None:
    descriptions = json.dumps({file: "You are it."})
    rows = [line("Crow", "Well?"), line(speaker, "Yes.")]
    folder = write_release(**{path(file): rows, "profiles-eng/desc.json": descriptions})
    (profile,) = load_profiles(CONFIG, folder, roles=[asked])
    assert (profile.role, profile.description) == (asked, "You are it.")
    assert [profile.owns(turn) for turn in profile.turns] == [False, True]


@pytest.mark.parametrize(
    "owl",
    [pytest.param(None, id="no file"), pytest.param([line("Fox", "Awake?")], id="a file in which it says nothing")],
)
@pytest.mark.parametrize("roles", [pytest.param(None, id="all"), pytest.param(["Fox", "Owl"], id="by name")])
def test_roles_without_dialogue_are_named(write_release: Any, owl: Any, roles: list[str] | None) -> None:
    folder = write_release(**{path("Fox"): FOX, path("Owl"): owl})
    with pytest.warns(MissingFilesWarning, match=r"of 1 roles, which are skipped: Owl$") as caught:
        profiles = load_profiles(CONFIG, folder, roles=roles)
    assert [profile.role for profile in profiles] == ["Fox"]
    assert Path(caught[0].filename) == Path(__file__)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param('{"role": "Fox"', "not valid JSON", id="cut off"),
        pytest.param('{"role": "Fox", "content": "Aha.", "act_id": true}', "found True", id="a truth for act"),
    ],
)
def test_a_bad_line_is_named(write_release: Any, bad: str, message: str) -> None:
    folder = write_release(**{path("Fox"): json.dumps(FOX[0]) + "\n\n" + bad + "\n", path("Owl"): OWL})
    with pytest.raises(DataError, match=message) as caught:
        load_profiles(CONFIG, folder)
    assert (caught.value.path, caught.value.line) == (folder / path("Fox"), 3)


def test_the_hub_is_asked_for_profiles_only(write_release: Any, release_hub: Any, clean_env: dict[str, str]) -> None:
    hub = release_hub(write_release(**{path("Fox"): FOX, path("Owl"): OWL, "unrelated/huge.bin": "x"}))
    code = "from rolellm.data.rolebench.release import load_profiles; print([item.role for item in load_profiles()])"
    shown = subprocess.run(
        [sys.executable, "-c", code], env=hub.env(clean_env), capture_output=True, text=True, timeout=120
    )
    assert shown.stdout.strip() == "['Fox', 'Owl']", shown.stderr
    assert set(hub.requested) == {"profiles-eng/desc.json", path("Fox"), path("Owl")}


def test_no_dialogue_at_all_names_the_files_and_a_way_out(write_release: Any) -> None:
    with pytest.raises(ReleaseNotFoundError) as caught:
        load_profiles(CONFIG, write_release())
    for word in ("Fox, Owl", "profiles-eng/profiles-eng-*.jsonl", "Hub", "sample"):
        assert word in str(caught.value)


# --- the Hub


_LOAD = """
import sys, warnings, rolellm
from datasets import load_dataset
warnings.simplefilter("ignore")
print(load_dataset("rolebench", sys.argv[1], split=sys.argv[2]).num_rows)
"""


@pytest.fixture
def load(clean_env):
    """Loads a config in a fresh process, as a user without a local copy does."""

    def run(hub, config="instruction-generalization-eng", split="test", **extra):
        env = {**hub.env(clean_env), **extra}
        command = [sys.executable, "-c", _LOAD, config, split]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_fetches_only_the_files_of_the_config(write_release, release_hub, load):
    folder = write_release(**{"rolebench-zh/general/test.jsonl": "x", "unrelated/huge.bin": "x" * 1000})
    hub = release_hub(folder)
    shown = load(hub)
    assert shown.stdout.split() == ["3"], shown.stderr
    assert hub.requested
    wanted = ("rolebench-eng/instruction-generalization/", "profiles-eng/desc.json", "instructions-eng/")
    assert [path for path in hub.requested if not path.startswith(wanted)] == []
    assert "Fetching" in shown.stderr, "no progress was shown"


@pytest.mark.slow
def test_second_load_fetches_nothing_and_works_offline(write_release, release_hub, load):
    hub = release_hub(write_release())
    assert load(hub).stdout.split() == ["3"]
    hub.requested.clear()
    assert load(hub, split="train").stdout.split() == ["3"]
    assert hub.requested == []
    assert load(hub, HF_HUB_OFFLINE="1").stdout.split() == ["3"]


def test_a_hub_that_is_down_names_all_places(write_release, release_hub, load):
    hub = release_hub(write_release())
    hub.fail("info", 503, times=1000)
    shown = load(hub)
    assert shown.returncode == 1
    message = shown.stderr.strip().splitlines()[-1]
    for word in ("ReleaseNotFoundError", "Hub", "data_dir", "ROLEBENCH_DIR", "sample"):
        assert word in message
