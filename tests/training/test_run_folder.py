"""A run's folder: which checkpoints count, and what is said to be kept when a run is asked to stop or finds no room."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rolellm.core.errors import ModelError, SettingsError, StoppedShortError
from rolellm.core.interrupts import note_stop_requests
from rolellm.training.run_folder import (
    MARK,
    RECIPE,
    explain_stop,
    find_checkpoint,
    find_last_step,
    list_checkpoints,
    mark_complete,
    remove_checkpoints,
)

PLAN = "stopping after this step, with a checkpoint"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_the_first_request_is_noted_and_the_second_interrupts_a_single_process(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), note_stop_requests(PLAN, is_single=True) as request:
        os.kill(os.getpid(), number)
        assert request.is_set()
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == f"\n{PLAN}; once more stops at once\n"
    with note_stop_requests(PLAN, is_single=False):
        for _ in range(3):
            os.kill(os.getpid(), number)
    assert capfd.readouterr().err == f"\n{PLAN}\n"


def test_what_is_kept_is_said_from_what_is_there(tmp_path: Path) -> None:
    def stop(change: str = "") -> str:
        with pytest.raises(StoppedShortError) as caught, explain_stop(tmp_path, again="AGAIN", resume="GO ON"):
            if change:
                (tmp_path / RECIPE).write_text(change, encoding="utf-8")
                os.utime(tmp_path / RECIPE, ns=(0, int(change)))
            raise KeyboardInterrupt
        return str(caught.value)

    assert stop() == "nothing was done yet\nResume with: AGAIN"
    (tmp_path / "checkpoint-9").mkdir()
    assert stop("2") == f"{tmp_path} has no checkpoint yet, so it starts over\nResume with: GO ON"
    (tmp_path / "checkpoint-4").mkdir()
    mark_complete(tmp_path / "checkpoint-4", {})
    assert stop("3") == f"step 4 is the last checkpoint in {tmp_path}\nResume with: GO ON"
    assert stop() == "nothing was done yet\nResume with: AGAIN"


@pytest.mark.parametrize("writer", ["torch", "safetensors", "python"])
def test_a_full_disk_is_said_whoever_writes(writer: str, tmp_path: Path) -> None:
    weights = {"weight": torch.zeros(100_000)}
    write = {
        "torch": lambda: torch.save(weights, tmp_path / "optimizer.pt"),
        "safetensors": lambda: save_file(weights, tmp_path / "model.safetensors"),
        "python": lambda: (tmp_path / "metrics.jsonl").write_bytes(bytes(100_000)),
    }[writer]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(StoppedShortError) as caught, explain_stop(tmp_path, again="AGAIN", resume="GO ON"):
            (tmp_path / RECIPE).write_text("{}", encoding="utf-8")
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    room = f"the disk is full; everything so far is saved in {tmp_path}; free some space, then resume: "
    assert str(caught.value).startswith(f"{room}{tmp_path} has no checkpoint yet")


def test_a_damaged_file_is_no_full_disk_and_other_errors_pass(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1000)}, tmp_path / "weights.pt")
    os.truncate(tmp_path / "weights.pt", 2000)
    with pytest.raises(RuntimeError), explain_stop(tmp_path, again="", resume=""):
        torch.load(tmp_path / "weights.pt", weights_only=True)
    with pytest.raises(ModelError), explain_stop(tmp_path, again="", resume=""):
        raise ModelError("its model cannot be loaded") from RuntimeError("PytorchStreamWriter failed")
    with pytest.raises(KeyError), explain_stop(tmp_path, again="", resume=""):
        raise KeyError


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
