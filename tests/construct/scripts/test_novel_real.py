"""Ten chapters of a novel against labels made by hand: who speaks, decided by reading the passage."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.reading import Hints
from rolellm.construct.scripts.source import read_source

HERO = "孙悟空"
ALIASES = ["悟空", "行者", "大圣", "齐天大圣", "美猴王", "猴王", "石猴", "弼马温", "孙大圣"]
LABELS = Path(__file__).resolve().parent.parent / "labels"


@pytest.fixture(scope="module")
def benchmark(root):
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("attribution_benchmark", root / "benchmarks" / "attribution.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture
def script(real_release):
    path = real_release.parent / "scripts" / "xiyouji_001_010.txt"
    assert path.is_file(), f"{path} is missing"
    return path


@pytest.mark.realdata
@pytest.mark.parametrize("file", ["xiyouji.jsonl", "xiyouji_rest.jsonl"])
def test_the_hero_is_found_and_nobody_else(benchmark, script, file):
    names = [HERO, *ALIASES]
    labels = benchmark.load_labels(LABELS / file)
    speaker = benchmark.speaker_at(read_source(script), Hints("zh", names))
    tally = benchmark.tally(labels, speaker, names)
    told = f"precision {tally.precision:.4f}, recall {tally.recall:.4f} of {len(labels)} quotations: {tally}"
    assert tally.right + tally.missed > 40, told
    assert tally.precision >= 0.95, told
    assert tally.recall >= 0.90, told


@pytest.mark.realdata
def test_every_label_is_a_quotation_of_the_file(script):
    text = script.read_bytes().decode("utf-8")
    for path in LABELS.glob("xiyouji*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            label = json.loads(line)
            assert {*label} == {"offset", "speaker"}
            assert text[label["offset"] - 1] == '"'


@pytest.mark.realdata
def test_ten_chapters_are_ten_scenes_of_known_speakers(script):
    turns = read_novel(read_source(script), Hints("zh", [HERO, *ALIASES]))
    speech = [turn for turn in turns if turn.kind == "speech"]
    headings = [turn.content for turn in turns if turn.kind == "direction"]
    assert [heading[:3] for heading in headings] == [f"第{number}回"[:3] for number in "一二三四五六七八九十"]
    assert {turn.scene for turn in turns} == set(range(10))
    known = sum(turn.speaker is not None for turn in speech)
    assert known / len(speech) > 0.97, f"{known} of {len(speech)}"


def test_the_benchmark_prints_one_object(root, tmp_path):
    text = '悟空道："来！"众猴道："来了！"悟空笑道："好！"'
    (tmp_path / "novel.txt").write_text(text, encoding="utf-8")
    rows = [{"offset": text.index("来！"), "speaker": "悟空"}, {"offset": text.index("来了"), "speaker": "众猴"}]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = [sys.executable, str(root / "benchmarks" / "attribution.py"), "--script", str(tmp_path / "novel.txt")]
    command += ["--labels", str(tmp_path / "labels.jsonl"), "--role", "悟空", "--megabytes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    result = json.loads(done.stdout)
    assert {"ratios", "figures", "n", "versions", "hardware"} <= result.keys()
    assert result["n"] == 2
    assert result["figures"]["precision"] == result["figures"]["recall"] == result["figures"]["agreement"] == 1.0
