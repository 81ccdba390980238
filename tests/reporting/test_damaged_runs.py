"""Whatever happened to the files of a run, a report of it is made, or refused in words."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, RoleLLMError
from rolellm.reporting.build import build_report, collect_sources
from rolellm.reporting.settings import ReportOptions

from .judged_run import draw_judgements, make_comparison, make_rows, write_run
from .rendered import render_page

FAST = ReportOptions(protocol="rouge-score")
FILES = ("manifest.json", "rows.jsonl", "answers.jsonl", "judgements.jsonl", "result.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    comparison = make_comparison(make_rows(("Ada Fenn",), 1))
    folder = tmp_path_factory.mktemp("runs") / "sound"
    return write_run(folder, comparison, draw_judgements(comparison, ["llama-judge", "other"]))


def damage(value: Any, path: tuple[Any, ...], new: Any) -> None:
    """Put something else in a place."""
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def report_of(folder: Path) -> None:
    """A page, or an error of our own that says something."""
    try:
        assert render_page(build_report(collect_sources([str(folder)]), FAST).content)
    except RoleLLMError as error:
        assert len(str(error)) > 20 and "Traceback" not in str(error)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe\x00", id="not-text"),
        pytest.param(b"[]\n", id="a-list"),
        pytest.param(None, id="lost"),
        pytest.param(b'{"x": ' + b"[" * 900 + b"]" * 900 + b"}\n", id="nested"),
        pytest.param(b'{"a": 1', id="cut-off"),
    ],
)
def test_a_damaged_file(name: str, content: bytes | None, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    if content is not None:
        (tmp_path / "run" / name).write_bytes(content)
        report_of(tmp_path / "run")
        return
    (tmp_path / "run" / name).unlink()
    with pytest.raises(DataError):
        build_report(collect_sources([str(tmp_path / "run")]), FAST)


@pytest.mark.parametrize(
    ("name", "path", "new", "words"),
    [
        pytest.param("result.json", ("models", 1, "pairwise", "win_rate"), {"mean": "much"}, "win_rate", id="score"),
        pytest.param("manifest.json", ("systems", 0, "name"), None, "systems is not valid at 0.name", id="system"),
        pytest.param("answers.jsonl", ("answers", "RoleGPT"), 7, "RoleGPT", id="answer"),
        pytest.param("judgements.jsonl", ("ranks",), "x", "ranks", id="ranks"),
    ],
)
def test_the_place_is_named(name: str, path: tuple[Any, ...], new: Any, words: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    text = (run / name).read_text(encoding="utf-8")
    first, *rest = text.splitlines() if name.endswith("l") else [text]
    value = json.loads(first)
    damage(value, path, new)
    (tmp_path / "run" / name).write_text("\n".join([json.dumps(value), *rest]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        build_report(collect_sources([str(tmp_path / "run")]), FAST)
    assert name in str(caught.value)
