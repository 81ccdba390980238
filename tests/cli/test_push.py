"""`rolellm data push` and `rolellm push`, as a shell runs them, against a local Hub."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard, snapshot_download

from rolellm.data.rolebench.source import sample_folder

from ..forking import Forking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    # The Hub client's own way of sending large files.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]

_STOCK = """
import sys
sys.modules["rolellm"] = None  # importing the library would fail
from datasets import get_dataset_config_names, load_dataset
repo = sys.argv[1]
for name in get_dataset_config_names(repo):
    for split, data in load_dataset(repo, name).items():
        print(name, split, data.num_rows, sep="\\t")
streamed = load_dataset(repo, "sample", split="test", streaming=True)
print("streamed", next(iter(streamed))["id"], sep="\\t")
print("default", load_dataset(repo).num_rows, sep="\\t")
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(hub: Any, clean_env: dict[str, str], tmp_path: Path, lukewarm: Forking) -> Run:
    """Runs a command, or code, with the local Hub, which has to end so; keyword arguments change its environment."""

    def run(
        *words: str | Path, code: str | None = None, end: int = 0, **env: str | None
    ) -> subprocess.CompletedProcess[str]:
        done = lukewarm.run(words, tmp_path, code=code, env={**hub.env(clean_env), **env})
        assert done.returncode == end, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def read(hub: Any, repo: str, kind: str = "model") -> Path:
    return Path(snapshot_download(repo, repo_type=kind, endpoint=hub.endpoint, force_download=True))


def test_the_data_set_loads_with_stock_datasets_in_all_configs(shell: Run, hub: Any) -> None:
    done = shell("data", "push", "me/rolebench", "--data-dir", sample_folder(), "--public", "--json")
    result = json.loads(done.stdout)
    assert (result["repo"], result["changed"]) == ("me/rolebench", True)
    assert result["url"] == f"{hub.endpoint}/datasets/me/rolebench"
    card = DatasetCard.load(read(hub, "me/rolebench", "dataset") / "README.md").text
    assert "| (role, question) in another test | 10 | 40 |" in card
    loaded = shell("me/rolebench", code=_STOCK)
    lines = [line.split("\t") for line in loaded.stdout.splitlines()]
    assert {line[0] for line in lines} == {
        *("instruction-generalization-eng", "instruction-generalization-zh", "role-generalization-eng"),
        *("instruction-generalization-eng-strict", "instruction-generalization-zh-strict"),
        *("instruction-generalization-eng-anonymous", "instruction-generalization-zh-anonymous"),
        *("role-generalization-eng-anonymous", "sample-anonymous"),
        *("role-generalization-eng-strict", "roles", "instructions", "sample", "streamed", "default"),
    }
    assert ["sample", "test", "72"] in lines
    again = shell("data", "push", "me/rolebench", "--data-dir", sample_folder())
    assert again.stdout.startswith("nothing to do: ")
    assert result["revision"] in again.stdout
