"""One commit or none: `push_folder` with the real client against a local Hub that fails where it is told to."""

import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, snapshot_download

from rolellm.core.errors import HubError, HubLoginError, HubUnreachableError, SettingsError
from rolellm.data.hub import Pushed, PushOptions, check_repo, push_folder
from rolellm.data.hub.push import BEGIN

# The client's own way of sending large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "me/thing"
CARD = "---\nlicense: mit\ntags:\n- ours\n---\n\n# Ours\n"
WEIGHTS = "weights-00001-of-00002.safetensors"
MORE_WEIGHTS = "sub/weights-00002-of-00002.safetensors"
EVER = 1000


class Publisher:
    """A folder, and a Hub to push it to."""

    def __init__(self, hub: Any, folder: Path) -> None:
        self.hub, self.folder, self.api = hub, folder, HfApi(endpoint=hub.endpoint)

    def push(self, **options: Any) -> Pushed:
        return push_folder(self.folder, REPO, PushOptions(endpoint=self.hub.endpoint, **options))

    def held(self, revision: str = "main") -> dict[str, bytes]:
        """What a revision holds, as a reader gets it."""
        source = {"revision": revision, "endpoint": self.hub.endpoint, "force_download": True}
        root = Path(snapshot_download(REPO, **source))
        return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}

    def commits(self, revision: str = "main") -> list[str]:
        return [commit.commit_id for commit in self.api.list_repo_commits(REPO, revision=revision)]

    def change(self, files: dict[str, bytes]) -> str:
        """Somebody else's commit."""
        self.api.create_repo(REPO, exist_ok=True)
        changes = [{"key": "file", "value": {"path": name, "content": content}} for name, content in files.items()]
        header = {"key": "header", "value": {"summary": "theirs"}}
        return str(self.hub.store.commit("model", REPO, "main", [header, *changes]))


@pytest.fixture
def us(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    # The client's own retries wait up to 23 seconds.
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    (folder / "config.json").write_text("{}\n")
    (folder / WEIGHTS).write_bytes(b"\0one")
    (folder / MORE_WEIGHTS).write_bytes(b"\0two" * 1000)
    return Publisher(hub, folder)


def test_a_folder_is_one_commit_and_the_same_again_none(us: Publisher) -> None:
    done = us.push()
    assert done.changed and done.url == f"{us.hub.endpoint}/{REPO}"
    assert us.commits()[:-1] == [done.revision], "the Hub's first one, and ours"
    held = us.held()
    for name in ("config.json", WEIGHTS, MORE_WEIGHTS):
        assert held[name] == (us.folder / name).read_bytes()
    assert b"license: mit" in held["README.md"] and b"# Ours" in held["README.md"]
    assert set(done.sent) == set(held) - {".gitattributes", ".rolellm.json"} and done.sent[MORE_WEIGHTS] == 4000
    assert us.api.repo_info(REPO).private
    us.hub.asked.clear()
    again = us.push()
    assert (again.changed, again.revision, again.sent) == (False, done.revision, {})
    assert not {"commit", "lfs_upload"} & set(us.hub.asked)


def test_files_of_ours_go_and_files_of_others_stay(us: Publisher) -> None:
    us.push()
    us.change({"notes.txt": b"mine"})
    (us.folder / WEIGHTS).rename(us.folder / "weights.safetensors")
    (us.folder / MORE_WEIGHTS).unlink()
    assert us.push().removed == (MORE_WEIGHTS, WEIGHTS)
    ours = {".gitattributes", ".rolellm.json", "README.md", "config.json", "weights.safetensors"}
    assert set(us.held()) == {*ours, "notes.txt"}


def test_text_and_keys_of_a_person_are_kept(us: Publisher) -> None:
    us.push()
    card = us.held()["README.md"].decode()
    card = card.replace("license: mit", "license: mit  # checked\nthumbnail: a.png").replace("- ours", "- ours\n- mine")
    us.change({"README.md": f"{card}\n## My notes\n\nRead **this**.\n".encode()})
    (us.folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [ours, new]\n---\n# Ours, newer\n")
    done = us.push()
    readme = us.held()["README.md"].decode()
    for kept in ("\n## My notes\n\nRead **this**.\n", "thumbnail: a.png", "- mine", "# Ours, newer"):
        assert kept in readme
    assert "# Ours\n" not in readme
    assert us.push().revision == done.revision, "stable from here on"


def test_a_branch_is_made_and_main_is_left_alone(us: Publisher) -> None:
    us.push()
    main = us.commits()
    (us.folder / "config.json").write_text("[]")
    done = us.push(branch="trial", message="a trial")
    assert us.commits() == main and us.commits("trial") == [done.revision, *main]
    assert us.api.list_repo_commits(REPO, revision="trial")[0].title == "a trial"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "error", "kind", "words"),
    [
        pytest.param("lfs_batch", 403, HubLoginError, "may not write to me/thing", id="lfs-batch-403"),
        pytest.param("lfs_upload", None, HubUnreachableError, "run the same command again", id="lfs-upload-dropped"),
        pytest.param("commit", 409, HubError, "changed while this was published", id="commit-409"),
    ],
)
def test_what_does_not_pass_leaves_what_was_there(
    point: str, error: int | None, kind: type[HubError], words: str, us: Publisher
) -> None:
    us.push()
    before, history = us.held(), us.commits()
    (us.folder / WEIGHTS).write_bytes(b"\0another")
    (us.folder / "config.json").unlink()
    us.hub.fail(point, error, times=EVER)
    with pytest.raises(kind, match=words):
        us.push()
    us.hub.faults.clear()
    assert (us.commits(), us.held()) == (history, before)
    assert us.push().changed and "config.json" not in us.held()


def test_a_token_that_the_hub_echoes_is_not_shown(us: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf_Zq81vXw0LmT4cR7yPd2NhK9bQeWuJs"
    monkeypatch.setenv("HF_TOKEN", token)
    us.hub.said = f"your headers were Authorization: Bearer {token}"
    us.hub.fail("info", 400, times=EVER)
    with pytest.raises(HubError, match="your headers were") as raised:
        us.push()
    shown = "".join(traceback.format_exception(raised.value))
    assert token not in shown and token[:8] not in shown and token[-8:] not in shown


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("README.md", b"---\na: [1\n---\n", "cannot be read", id="bad-yaml"),
        pytest.param("README.md", f"{BEGIN}\nhm".encode(), "restore the pair", id="begin-alone"),
        pytest.param(".rolellm.json", b"[]", "not what rolellm wrote", id="another-record"),
    ],
)
def test_what_cannot_be_merged_with_is_left_alone(name: str, content: bytes, words: str, us: Publisher) -> None:
    theirs = us.change({name: content})
    with pytest.raises(HubError, match=words):
        us.push()
    assert us.commits()[0] == theirs


def test_a_dry_run_asks_the_hub_for_nothing(us: Publisher) -> None:
    done = us.push(dry_run=True)
    assert us.hub.asked == [] and (done.revision, done.changed) == (None, None)
    assert list(done.sent) == ["README.md", "config.json", MORE_WEIGHTS, WEIGHTS]


@pytest.mark.parametrize("name", ["thing", "a/b/c", "./runs", "me/李白"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a repository"):
        check_repo(name)


def test_what_cannot_be_pushed_asks_nothing(us: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match="contains nothing"):
        Publisher(us.hub, tmp_path / "empty").push()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE is set"):
        us.push()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubLoginError, match=r"hf auth login.*HF_TOKEN"):
        us.push()
    assert us.hub.asked == []
