"""``rolellm report`` as a user gives it: runs or predictions in, one page and its tables out."""

from functools import partial
from pathlib import Path

import pytest

from rolellm.data.rolebench.source import sample_folder

from ..commands import Command
from ..reporting.judged_run import make_run


@pytest.fixture
def report(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "report")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "ig-eng", each=2)


def test_the_published_table_is_not_shown_with_rows_that_share_the_configs_name(
    report: Command, tmp_path: Path
) -> None:
    """A config that the paper has a table of, here with the sample's rows under its name."""
    folder = sample_folder()
    files = sorted((folder / "rolebench-eng" / "instruction-generalization").rglob("rolegpt_baseline.jsonl"))
    named = [f"Replies={file}" for file in files]
    shown = report(
        *named, "--config", "instruction-generalization-eng", "--set", f"data_dir={folder}", "--tables", "t", "--json"
    )
    (part,) = shown.result["parts"]
    assert part["published"] is False and part["protocol"] == "paper"
    lines = (tmp_path / "t" / "scores.md").read_text(encoding="utf-8").splitlines()
    assert not any("published" in line for line in lines)
    ours = [line.split("|")[2:] for line in lines if line.startswith(("| RoleGPT |", "| Replies |"))]
    assert len(ours) == 2 and ours[0] == ours[1]


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
def test_the_published_table_with_the_releases_own_rows(report: Command, real_release: Path, tmp_path: Path) -> None:
    file = real_release / "rolebench-zh" / "role_specific" / "rolegpt_baseline.jsonl"
    words = [
        "--config",
        "instruction-generalization-zh",
        "--set",
        f"data_dir={real_release}",
        "--tables",
        "t",
        "--json",
    ]
    shown = report(f"Replies={file}", *words)
    (part,) = shown.json["parts"]
    assert part["published"] is True and part["protocol"] == "paper"
    lines = (tmp_path / "t" / "scores.md").read_text(encoding="utf-8").splitlines()
    assert "| RoleGPT (published) | 0.537 | 0.575 | 0.248 | 0.453 |" in lines


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(["."], 1, "not the folder of a judging run", id="not-a-run"),
        pytest.param(["p.jsonl"], 2, "--config is missing", id="no-config"),
        pytest.param(["p.jsonl", "--config", "sample"], 1, "p: ", id="answers-no-row"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    report: Command, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"id": "x", "prediction": "\x1b[31my"}\n'.replace("\x1b", "\\u001b"), encoding="utf-8"
    )
    shown = report(*words)
    assert shown.code == code and message in shown.err
    assert not (tmp_path / "report.html").exists()
