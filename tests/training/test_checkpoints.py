"""Checkpoints that count and checkpoints that do not."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolellm.core.errors import SettingsError
from rolellm.training.run_folder import (
    MARK,
    find_checkpoint,
    find_last_step,
    list_checkpoints,
    mark_complete,
    remove_checkpoints,
)

FACTS = {"recipe": "abc", "processes": 2}


def write(run: Path, step: int, *, is_complete: bool = True) -> Path:
    folder = run / f"checkpoint-{step}"
    (folder / "shards").mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"weights" * step)
    (folder / "shards" / "0.distcp").write_bytes(b"shard")
    if is_complete:
        mark_complete(folder, FACTS)
    return folder


def test_the_newest_is_that_of_most_steps_that_is_marked_and_of_the_same_run(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "none", FACTS) is None
    for step in (9, 10, 2):
        write(tmp_path, step)
    write(tmp_path, 11, is_complete=False)
    assert find_checkpoint(tmp_path, FACTS) == tmp_path / "checkpoint-10"
    assert find_last_step(tmp_path) == 10
    with pytest.raises(SettingsError, match=r"differs in recipe, processes \(2, now 4\), data, so"):
        find_checkpoint(tmp_path, {"recipe": "f" * 64, "processes": 4, "data": "e" * 64})


KILLED_AT_REMOVAL = """
import os, signal, sys
from pathlib import Path
from rolellm.training.run_folder import remove_checkpoints

removals = 0

def kill(event, arguments):
    global removals
    removals += event == "os.remove"
    if event == "os.remove" and removals == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
remove_checkpoints([Path(sys.argv[1]) / "checkpoint-2"])
"""


@pytest.mark.parametrize("removal", [1, 2, 3])
def test_killed_while_it_is_removed_a_checkpoint_does_not_pass_for_whole(removal: int, tmp_path: Path) -> None:
    """Killed before the first, second or third file is gone; the mark is the first."""
    write(tmp_path, 1)
    folder = write(tmp_path, 2)
    # In whichever order a folder is read, the mark is not what comes first.
    for number in range(5):
        (folder / f"{number}.log").write_bytes(b"")
    command = [sys.executable, "-c", KILLED_AT_REMOVAL, str(tmp_path), str(removal)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (folder / MARK).exists() is (removal == 1)
    assert find_last_step(tmp_path) == (2 if removal == 1 else 1)


def test_folders_of_other_names_are_nobodys_checkpoints(tmp_path: Path) -> None:
    names = {"checkpoint-best", "checkpoint-3.bak", "checkpoint-", "checkpoint--3", "my-checkpoint-3"}
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-7").write_text("a file", encoding="utf-8")
    write(tmp_path, 4)
    write(tmp_path, 5)
    assert list_checkpoints(tmp_path) == [tmp_path / "checkpoint-5", tmp_path / "checkpoint-4"]
    remove_checkpoints(list_checkpoints(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == names | {"checkpoint-7"}
