"""`examples/local_hub.py` as a program, with the real client: what it keeps, it keeps for good."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, HfFileSystem, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

REPO = "me/thing"


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@contextmanager
def served(root: Path, folder: Path) -> Iterator[HfApi]:
    command = [sys.executable, str(root / "examples" / "local_hub.py"), "--dir", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"export HF_ENDPOINT=(\S+) HF_TOKEN=(\S+) HF_HUB_DISABLE_XET=1\n", line)
        assert found is not None, line
        try:
            yield HfApi(endpoint=found[1], token=found[2])
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_revisions_outlive_the_server(root: Path, tmp_path: Path) -> None:
    with served(root, tmp_path / "hub") as api:
        assert api.whoami()["name"] == "local"
        api.create_repo(REPO, private=True)
        large = tmp_path / "large"
        large.write_bytes(b"\0" * 5000 + b"end")
        files = [CommitOperationAdd("a/b.bin", large), CommitOperationAdd("c.txt", b"first")]
        first = api.create_commit(REPO, files, commit_message="first").oid
        changes = [CommitOperationAdd("c.txt", b"second"), CommitOperationDelete("a/", is_folder=True)]
        api.create_commit(REPO, changes, commit_message="second", parent_commit=first)
    with served(root, tmp_path / "hub") as api:
        assert [commit.title for commit in api.list_repo_commits(REPO)] == ["second", "first", "initial commit"]
        assert api.list_repo_files(REPO) == [".gitattributes", "c.txt"]
        assert api.list_repo_files(REPO, revision=first[:8]) == [".gitattributes", "a/b.bin", "c.txt"]
        old = api.hf_hub_download(REPO, "a/b.bin", revision=first, cache_dir=tmp_path / "cache")
        assert Path(old).read_bytes() == large.read_bytes()
        files = HfFileSystem(endpoint=api.endpoint, token=api.token, skip_instance_cache=True)
        assert files.read_block(f"{REPO}@{first}/a/b.bin", 4998, 100) == b"\0\0end"
        assert [entry["name"] for entry in files.ls(f"{REPO}@{first}")] == [
            f"{REPO}@{first}/{name}" for name in ("a", ".gitattributes", "c.txt")
        ]
        with pytest.raises(RepositoryNotFoundError):
            api.repo_info(REPO, token=False)
        with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
            api.create_commit(REPO, [CommitOperationAdd("d", b"")], commit_message="stale", parent_commit=first)
        api.delete_repo(REPO)
        assert not api.repo_exists(REPO)
