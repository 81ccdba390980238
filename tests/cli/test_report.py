"""``rolellm report`` as a user gives it: runs or predictions in, one page and its tables out."""

from functools import partial
from pathlib import Path

import pytest

from rolellm.data.rolebench.source import sample_folder

from ..commands import Command


@pytest.fixture
def report(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "report")


def test_the_published_table_is_not_shown_with_rows_that_share_the_configs_name(
    report: Command, tmp_path: Path
) -> None:
    """A config that the paper has a table of, here with the sample's rows under its name."""
    folder = sample_folder()
    files = sorted((folder / "rolebench-eng" / "instruction-generalization").rglob("rolegpt_baseline.jsonl"))
    named = [f"Replies={file}" for file in files]
    words = f"--config instruction-generalization-eng --set data_dir={folder} --tables t --json"
    shown = report(*named, *words.split())
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
    words = f"--config instruction-generalization-zh --set data_dir={real_release} --tables t --json"
    shown = report(f"Replies={file}", *words.split())
    (part,) = shown.json["parts"]
    assert part["published"] is True and part["protocol"] == "paper"
    lines = (tmp_path / "t" / "scores.md").read_text(encoding="utf-8").splitlines()
    assert "| RoleGPT (published) | 0.537 | 0.575 | 0.248 | 0.453 |" in lines
