"""Ten chapters of a novel against labels made by hand: who speaks, decided by reading the passage."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.scripts.novel import read_novel
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import read_source

HERO = "孙悟空"
ALIASES = ["悟空", "行者", "大圣", "齐天大圣", "美猴王", "猴王", "石猴", "弼马温", "孙大圣"]
LABELS = Path(__file__).resolve().parent.parent / "labels"


def figures(root: Path, script: Path, labels: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, str(root / "benchmarks" / "attribution.py"), "--script", str(script)]
    command += ["--labels", str(labels), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture
def script(real_release: Path) -> Path:
    path = real_release.parent / "scripts" / "xiyouji_001_010.txt"
    assert path.is_file(), f"{path} is missing"
    return path


@pytest.mark.realdata
@pytest.mark.parametrize("file", ["xiyouji.jsonl", "xiyouji_rest.jsonl"])
def test_what_is_given_to_the_hero_is_his(root: Path, script: Path, file: str) -> None:
    aliases = [word for alias in ALIASES for word in ("--alias", alias)]
    found = figures(root, script, LABELS / file, "--role", HERO, *aliases)["figures"]
    assert found["role_precision"] >= 0.97, found
    assert found["role_recall"] >= 0.4, found


@pytest.mark.realdata
def test_ten_chapters_are_ten_scenes(script: Path) -> None:
    turns = read_novel(read_source(script), ReaderHints("zh", [HERO, *ALIASES]))
    headings = [turn.content for turn in turns if turn.kind == "direction"]
    assert [heading[:3] for heading in headings] == [f"第{number}回"[:3] for number in "一二三四五六七八九十"]
    assert {turn.scene for turn in turns} == set(range(10))
