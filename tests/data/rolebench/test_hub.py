"""The release from the Hub, with the real client against a local server."""

import subprocess
import sys

import pytest

_LOAD = """
import sys, warnings, rolellm
from datasets import load_dataset
warnings.simplefilter("ignore")
print(load_dataset("rolebench", sys.argv[1], split=sys.argv[2]).num_rows)
"""


@pytest.fixture
def load(clean_env):
    """Loads a config in a fresh process, as a user without a local copy does."""

    def run(hub, config="instruction-generalization-eng", split="test", **extra):
        env = {**hub.env(clean_env), **extra}
        command = [sys.executable, "-c", _LOAD, config, split]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_fetches_only_the_files_of_the_config(write_release, release_hub, load):
    folder = write_release(**{"rolebench-zh/general/test.jsonl": "x", "unrelated/huge.bin": "x" * 1000})
    hub = release_hub(folder)
    shown = load(hub)
    assert shown.stdout.split() == ["3"], shown.stderr
    assert hub.requested
    wanted = ("rolebench-eng/instruction-generalization/", "profiles-eng/desc.json", "instructions-eng/")
    assert [path for path in hub.requested if not path.startswith(wanted)] == []
    assert "Fetching" in shown.stderr, "no progress was shown"


@pytest.mark.slow
def test_second_load_fetches_nothing_and_works_offline(write_release, release_hub, load):
    hub = release_hub(write_release())
    assert load(hub).stdout.split() == ["3"]
    hub.requested.clear()
    assert load(hub, split="train").stdout.split() == ["3"]
    assert hub.requested == []
    assert load(hub, HF_HUB_OFFLINE="1").stdout.split() == ["3"]


def test_a_hub_that_is_down_names_all_places(write_release, release_hub, load):
    hub = release_hub(write_release())
    hub.fail("info", 503, times=1000)
    shown = load(hub)
    assert shown.returncode == 1
    message = shown.stderr.strip().splitlines()[-1]
    for word in ("ReleaseNotFoundError", "Hub", "data_dir", "ROLEBENCH_DIR", "sample"):
        assert word in message
