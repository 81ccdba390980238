"""A request to stop is noted, a second one interrupts, and what is kept is said."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rolellm.core.errors import ModelError, StoppedShortError
from rolellm.core.interrupts import note_stop_requests
from rolellm.training.run_folder import RECIPE, explain_stop, mark_complete

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
