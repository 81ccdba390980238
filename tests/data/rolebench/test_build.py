"""`rolellm data build`: what it writes loads with stock `datasets`; what its audit finds; and twins without fame."""

import functools
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from datasets import load_dataset
from markdown_it import MarkdownIt

from rolellm.core.errors import RoleLLMWarning
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.audit import audit_release
from rolellm.data.rolebench.build import build
from rolellm.data.rolebench.release import Release, iter_rows
from rolellm.data.rolebench.schema import ANONYMOUS, get_config
from rolellm.data.rolebench.source import sample_folder
from rolellm.data.rolebench.statistics import count_table_one
from rolellm.data.rolebench.twins import Names, get_world_names, load_names, make_twin
from rolellm.scoring.score import score
from rolellm.training.publish import _write_hub_results, read_scores


@pytest.mark.filterwarnings("ignore:rolebench 'instructions'")
def test_a_files_name_and_a_licence_stay_text_in_the_card(write_release, tmp_path):
    name = "role-specific-`|<script>alert(1)<\u2044script>\u202e# x"
    row = {"instruction": "Who?", "answer": "Me.", "type": "script_based"}
    folder = write_release(**{f"instructions-eng/{name}.jsonl": [row]})
    build(tmp_path / "out", ["instructions"], data_dir=folder, licence="mit`\n\n# Mine <b>")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    body = text.split("\n---\n", 1)[1]
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    inner = [child.type for token in tokens for child in token.children or ()]
    assert not any("html" in kind for kind in (*inner, *(token.type for token in tokens)))
    assert "\u202e" not in body and "# Mine <b>" not in body.splitlines()


def test_many_rows_are_sharded_and_num_proc_reads_them(write_release, tmp_path, monkeypatch):
    monkeypatch.setattr("rolellm.data.rolebench.build.ROWS_PER_FILE", 10)
    rows = [{"role": "Fox", "question": f"Number {n}?", "generated": ["Yes."]} for n in range(35)]
    path = "rolebench-eng/instruction-generalization/general/test.jsonl"
    build(tmp_path / "out", ["instruction-generalization-eng"], data_dir=write_release(**{path: rows}))
    files = sorted((tmp_path / "out").glob("*/test-*-of-00004.parquet"))
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert [hashlib.sha256(file.read_bytes()).hexdigest() in text for file in files] == [True] * 4
    data = load_dataset(str(tmp_path / "out"), split="test", num_proc=2)
    assert data["question"][:35] == [row["question"] for row in rows]


_PEAK = """
import resource, sys, warnings
import datasets, pyarrow.parquet
from rolellm.data.rolebench.build import build
warnings.simplefilter("ignore")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
build(sys.argv[2], ["instruction-generalization-eng"], data_dir=sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path, write_release, clean_env):
    path = "rolebench-eng/instruction-generalization/general/train.jsonl"
    rows = ({"role": "Fox", "question": f"Number {n}?", "generated": ["Yes. " * 60]} for n in range(150_000))
    folder = write_release(**{path: rows})
    command = [sys.executable, "-c", _PEAK, str(folder), str(tmp_path / "out")]
    shown = subprocess.run(command, env=clean_env, capture_output=True, text=True, check=True)
    assert int(shown.stdout) < 60, "megabytes beyond what the imports take"


@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
def test_command_builds_all_or_says_what_is_bad(write_release, tmp_path, command):
    path = "rolebench-eng/instruction-generalization/general/test.jsonl"
    good = '{"role": "Fox", "question": "Q?", "generated": ["A."]}\n'
    folder = write_release(**{path: f"{good}bad\n"})
    arguments = ("data", "build", "--data-dir", folder, "--out", tmp_path / "out")
    refused = command(*arguments)
    assert refused.code == 1
    assert f"{path}:2: not valid JSON" in refused.err and "rolellm data audit" in refused.err
    (folder / path).write_text(good)
    shown = command(*arguments)
    assert shown.code == 0, shown.err
    assert shown.out.count("instruction-generalization-eng") == 4
    assert "missing: rolebench-zh/general/train.jsonl" in shown.out
    lines = {line.name: line for line in count_table_one(folder).lines}
    assert (lines["general, en: samples"].here, lines["general, en: instructions"].here) == (3, 2)
    assert lines["general, zh: samples"].here is None


@pytest.mark.realdata
def test_table_one_of_the_real_release(real_release):
    lines = {line["name"]: line for line in count_table_one(real_release).to_dict()["lines"]}
    for name in ("general, zh: samples", "general, zh: instructions", "role_specific, zh: samples"):
        assert lines[name]["here"] == lines[name]["published"], name
    assert lines["general, en: instructions"]["here"] == 1500
    assert lines["general, en: samples"]["here"] is None
    assert lines["roles, en"]["here"] == 95


@pytest.mark.filterwarnings("ignore:rolebench '")
def test_what_is_pushed_is_a_benchmark_and_a_models_scores_name_its_tasks(write_release, tmp_path):
    config = "instruction-generalization-eng"
    folder = write_release()
    build(tmp_path / "out", [config, "roles", "sample"], data_dir=folder, home="ada/bench")
    found = yaml.safe_load((tmp_path / "out" / "eval.yaml").read_text(encoding="utf-8"))
    assert found["name"] == "RoleBench" and found["description"] and found["evaluation_framework"] == "inspect-ai"
    assert {(one["config"], one["split"]) for one in found["tasks"]} == {(config, "test")}
    assert load_dataset(str(tmp_path / "out"), config, split="test").num_rows == 3
    test = load_rolebench(config, "test", data_dir=folder)
    scored = score([row["references"][0] for row in test], test, config=config, split="test")
    (tmp_path / "S.json").write_text(json.dumps(scored.to_dict()), encoding="utf-8")
    _write_hub_results([read_scores(tmp_path / "S.json")], tmp_path)
    results = yaml.safe_load((tmp_path / ".eval_results" / "rolebench.yaml").read_text(encoding="utf-8"))
    assert [one["dataset"]["task_id"] for one in results] == [one["id"] for one in found["tasks"]]
    build(tmp_path / "out", [config], data_dir=folder)
    assert not (tmp_path / "out" / "eval.yaml").exists()


# --- the audit


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


# --- twins


ENGLISH = Names(
    "en", {"Robin Hood": "Martin Pell", "Robin": "Martin", "Hood": "Pell", "Marian": "Lilian", "HAL": "MEL"}
)


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ("Robin Hood and Marian's dog", "Martin Pell and Lilian's dog"),
        ("ROBIN HOOD! robin hood?", "MARTIN PELL! martin pell?"),
        ("the Hoods’ #RobinHood, robin_hood", "the Pells’ #MartinPell, martin_pell"),
        ("HAL and HAL's halls", "MEL and MEL's halls"),
        ("a robin under a hood in Robinson's neighborhood", "a robin under a hood in Robinson's neighborhood"),
    ],
)
def test_english_names_in_all_their_forms(text, twin):
    assert ENGLISH.rename(text) == twin
    assert ENGLISH.rename(twin) == twin


def test_chinese_names_the_longest_first():
    names = Names("zh", {"张翼德": "屠云骧", "翼德": "云骧", "张飞": "屠烈"})
    assert names.rename("燕人张翼德，字翼德，张飞也，一张飞机票") == "燕人屠云骧，字云骧，屠烈也，一屠烈机票"
    assert names.find("张翼德") == {"张翼德"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_reviewed_names_are_one_to_one(language):
    roles = load_names()[language]
    for role, names in roles.items():
        shared = [twin for twin, count in Counter(names.twins.values()).items() if count > 1]
        assert not shared, role
        assert not [twin for twin in names.twins.values() if names.find(twin)], role
    assert len({names.rename(role) for role, names in roles.items()}) == len(roles)
    # A title that any ruler of the kind has; the people around him are renamed.
    assert {role for role, names in roles.items() if names.rename(role) == role} <= {"皇帝"}


def check(release: Release, config: str) -> Counter[str]:
    """Every promise of a twin, for all rows of a config; counts rows, and names that were replaced."""
    found: Counter[str] = Counter()
    for split in ("train", "test"):
        named = {row["id"]: row for row in iter_rows(release, get_config(config), split)}
        twins = {row["id"]: row for row in iter_rows(release, get_config(config + ANONYMOUS), split)}
        assert list(twins) == [one for one, row in named.items() if make_twin(row)]
        for key, twin in twins.items():
            row = named[key]
            names = get_world_names(row["role"], row["language"])
            kept = names.find(row["question"], row["raw_reference"]) if row["subset"] == "general" else set()
            texts = [texts_of(one) for one in (row, twin)]
            # So that the way back is known.
            assert not twins_of(names).find(*itertools.chain.from_iterable(texts[0]))
            assert list(map(len, texts[0])) == [len(part) for part in texts[1]]
            for before, after in zip(*map(itertools.chain.from_iterable, texts), strict=True):
                assert names.find(after) <= kept
                assert names.rename(after, kept) == after
                assert (before == after) == (not names.find(before) - kept)
                found["replaced"] += before != after
            assert {one: twin[one] for one in ("id", "language", "subset", "reference_types")} == {
                one: row[one] for one in ("id", "language", "subset", "reference_types")
            }
            found["rows"] += 1
    assert not release.left_out
    return found


@functools.cache
def twins_of(names: Names) -> Names:
    return Names(names.language, {twin: name for name, twin in names.twins.items()})


def texts_of(row: dict) -> list[list[str]]:
    singles = [[row[key]] if row[key] is not None else [] for key in ("question", "rolegpt", "raw_reference")]
    return [*singles, row["references"]]


def test_the_sample_has_a_twin_for_every_row():
    found = check(Release(sample_folder()), "sample")
    assert found["rows"] == 280
    assert found["replaced"] > 250


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ("instruction-generalization-eng", 4750),
        ("role-generalization-eng", 7534),
        ("instruction-generalization-zh", 9158),
    ],
)
def test_the_release_has_a_twin_for_every_row(config, rows, real_release):
    assert check(Release(real_release), config)["rows"] == rows


def row(subset: str, question: str, *replies: str) -> dict:
    about = {"raw_reference": None, "rolegpt": None, "role_description": "You are Queen of Hearts."}
    return {"id": "1", "role": "Queen of Hearts", "language": "en", "subset": subset, "question": question} | {
        "references": list(replies),
        **about,
    }


def test_what_a_general_instruction_names_stays():
    twin = make_twin(row("general", "What is a Newt?", "A Newt! I, the Queen, say so!"))
    assert (twin["question"], twin["references"]) == ("What is a Newt?", ["A Newt! I, the Duchess, say so!"])
    twin = make_twin(row("role_specific", "Who is Lord Newt?", "Lord Newt!"))
    assert (twin["role"], twin["question"]) == ("Duchess of Bells", "Who is Lord Toad?")
    assert twin["role_description"] == "You are Duchess of Bells."
    assert make_twin(row("general", "Name the poem of the Queen of Hearts.", "Tarts!")) is None


def test_roles_without_reviewed_names_are_left_out_in_words(write_release, tmp_path):
    path = "rolebench-eng/instruction-generalization/general/test.jsonl"
    config = "instruction-generalization-eng-anonymous"
    rows = [{"role": role, "question": "Who?", "generated": ["I."]} for role in ("Fox", "Queen of Hearts")]
    folder = str(write_release(**{path: rows}))
    with pytest.warns(RoleLLMWarning, match="no reviewed names: Fox"):
        data = load_dataset("rolebench", config, data_dir=folder)
    assert data["test"]["role"] == ["Duchess of Bells"]
    with pytest.warns(RoleLLMWarning, match="no reviewed names"):
        build(tmp_path / "out", [config], data_dir=folder)
    assert "Without reviewed names, and so left out: `Fox`" in (tmp_path / "out" / "README.md").read_text("utf-8")
