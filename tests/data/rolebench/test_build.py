"""`rolellm data build`: what it writes loads with stock `datasets`, and says where it came from."""

import hashlib
import json
import subprocess
import sys

import pytest
import yaml
from datasets import load_dataset
from markdown_it import MarkdownIt

from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.build import build
from rolellm.data.rolebench.statistics import count_table_one
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
