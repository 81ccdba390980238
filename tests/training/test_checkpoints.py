"""Checkpoints that count and checkpoints that do not."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import RoleLLMWarning, SettingsError
from rolellm.training.run_folder import (
    SEAL,
    find_checkpoint,
    find_last_step,
    keep_newest,
    list_checkpoints,
    remove_after,
    seal_checkpoint,
)

FACTS = {"recipe": "abc", "processes": 2}
FILE = "weights.safetensors"


def write(run: Path, step: int, *, sealed: bool = True) -> Path:
    folder = run / f"checkpoint-{step}"
    (folder / "shards").mkdir(parents=True)
    (folder / FILE).write_bytes(b"weights" * step)
    (folder / "shards" / "0.distcp").write_bytes(b"shard")
    if sealed:
        seal_checkpoint(folder, step, FACTS)
    return folder


def names(run: Path) -> set[str]:
    return {path.name for path in run.iterdir()}


def test_the_newest_is_that_of_most_steps_not_that_which_sorts_last(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "none", FACTS) is None
    for step in (9, 10, 100, 2):
        write(tmp_path, step)
    # An editor's backup, or what a file browser leaves, is no harm.
    (tmp_path / "checkpoint-100" / ".DS_Store").write_bytes(b"?")
    assert find_checkpoint(tmp_path, FACTS) == tmp_path / "checkpoint-100"
    shutil.rmtree(tmp_path / "checkpoint-100")
    write(tmp_path, 11, sealed=False)
    assert find_last_step(tmp_path) == 10


def write_seal(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    (folder / SEAL).write_text(json.dumps(content | changes), encoding="utf-8")


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


WEIGHTS = b"weights" * 4


@pytest.mark.parametrize(
    ("tear", "problem"),
    [
        pytest.param(lambda f: (f / SEAL).unlink(), "it has no seal, so it was not finished", id="no-seal"),
        pytest.param(
            lambda f: (f / SEAL).write_bytes(b'{"step": 4, "fil'), "its seal cannot be read", id="cut-off-seal"
        ),
        pytest.param(lambda f: (f / SEAL).write_bytes(b"\xff\xfe\x00"), "its seal cannot be read", id="seal-not-text"),
        pytest.param(lambda f: (f / SEAL).write_text("[]"), "its seal cannot be read", id="seal-is-a-list"),
        pytest.param(lambda f: write_seal(f, step="four"), "its seal cannot be read", id="step-no-number"),
        pytest.param(lambda f: write_seal(f, facts=None), "its seal cannot be read", id="no-facts"),
        pytest.param(lambda f: replace_by_folder(f / SEAL), "its seal cannot be read", id="seal-is-a-folder"),
        pytest.param(lambda f: write_seal(f, step=2), "its seal is that of step 2", id="seal-of-another-step"),
        pytest.param(lambda f: replace_by_folder(f / FILE), f"{FILE} is missing", id="now-a-folder"),
        pytest.param(lambda f: shutil.rmtree(f / "shards"), "shards/0.distcp is missing", id="missing-shard"),
        pytest.param(lambda f: (f / FILE).write_bytes(WEIGHTS[:-2]), f"{FILE} was changed or cut off", id="cut-off"),
        pytest.param(lambda f: (f / FILE).write_bytes(WEIGHTS + b"\0"), f"{FILE} was changed", id="grown"),
        pytest.param(lambda f: (f / FILE).write_bytes(WEIGHTS[:-1] + b"u"), f"{FILE} was changed", id="one-bit"),
    ],
)
def test_what_is_torn_is_passed_over_by_name_with_the_reason(
    tear: Callable[[Path], Any], problem: str, tmp_path: Path
) -> None:
    write(tmp_path, 2)
    tear(write(tmp_path, 4))
    with pytest.warns(RoleLLMWarning) as caught:
        found = find_checkpoint(tmp_path, FACTS)
    assert found == tmp_path / "checkpoint-2"
    (only,) = caught
    assert str(only.message).startswith(f"{tmp_path / 'checkpoint-4'} is passed over: {problem}")


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    write(tmp_path, 4)
    with pytest.raises(
        SettingsError, match=r"checkpoint-4 belongs to a run that differs in processes \(2, now 1\), so"
    ):
        find_checkpoint(tmp_path, {**FACTS, "processes": 1})
    with pytest.raises(SettingsError, match=r"differs in recipe, processes \(2, now 4\), data, so"):
        find_checkpoint(tmp_path, {"recipe": "f" * 64, "processes": 4, "data": "e" * 64})


def test_a_torn_one_is_not_asked_whose_it_is(tmp_path: Path) -> None:
    write(tmp_path, 2)
    folder = write(tmp_path, 4, sealed=False)
    seal_checkpoint(folder, 4, {**FACTS, "processes": 7})
    (folder / FILE).unlink()
    with pytest.warns(RoleLLMWarning, match="is passed over"):
        assert find_checkpoint(tmp_path, FACTS) == tmp_path / "checkpoint-2"


@settings(max_examples=40)
@given(steps=st.sets(st.integers(1, 2000), min_size=1, max_size=12), sealed=st.data(), count=st.integers(1, 4))
def test_keeping_leaves_the_newest_complete_ones_whatever_was_there(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], sealed: st.DataObject, count: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    complete = sealed.draw(st.sets(st.sampled_from(sorted(steps))))
    for step in steps:
        write(run, step, sealed=step in complete)
    keep_newest(run, count)
    left = [int(name.removeprefix("checkpoint-")) for name in names(run)]
    assert sorted(set(left) & complete) == sorted(complete)[-count:]
    newer = {step for step in steps if complete and step >= sorted(complete)[-count:][0]}
    assert set(left) == (newer if complete else steps)


KILLED_AT_REMOVAL = """
import os, signal, sys
from pathlib import Path
from rolellm.training.run_folder import keep_newest

removals = 0

def kill(event, arguments):
    global removals
    removals += event == "os.remove"
    if event == "os.remove" and removals == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
keep_newest(Path(sys.argv[1]), 1)
"""


@pytest.mark.parametrize("removal", [1, 2, 3])
def test_killed_while_it_is_removed_a_checkpoint_does_not_pass_for_whole(removal: int, tmp_path: Path) -> None:
    """Killed before the first, second or third file is gone; the seal is the first."""
    folder = write(tmp_path, 1)
    write(tmp_path, 2)
    # In whichever order a folder is read, the seal is not what comes first.
    for number in range(5):
        (folder / f"{number}.log").write_bytes(b"")
    command = [sys.executable, "-c", KILLED_AT_REMOVAL, str(tmp_path), str(removal)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (folder / SEAL).exists() is (removal == 1)
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 9 - removal
    assert find_checkpoint(tmp_path, FACTS) == tmp_path / "checkpoint-2"
    shutil.rmtree(tmp_path / "checkpoint-2")
    if removal > 1:
        with pytest.warns(RoleLLMWarning, match="it has no seal"):
            assert find_checkpoint(tmp_path, FACTS) is None


@pytest.mark.parametrize(
    "name", ["checkpoint-best", "checkpoint-3.bak", "checkpoint-", "checkpoint--3", "my-checkpoint-3"]
)
def test_folders_of_other_names_are_nobodys_checkpoints(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-7").write_text("a file", encoding="utf-8")
    write(tmp_path, 4)
    write(tmp_path, 5)
    assert list_checkpoints(tmp_path) == [tmp_path / "checkpoint-5", tmp_path / "checkpoint-4"]
    keep_newest(tmp_path, 1)
    remove_after(tmp_path, 0)
    assert names(tmp_path) == {name, "checkpoint-7"}


def test_what_lies_beyond_a_step_is_forgotten(tmp_path: Path) -> None:
    write(tmp_path, 9)
    write(tmp_path, 10)
    write(tmp_path, 11, sealed=False)
    write(tmp_path, 100)
    remove_after(tmp_path, 10)
    assert names(tmp_path) == {"checkpoint-9", "checkpoint-10"}
    assert find_last_step(tmp_path) == 10
