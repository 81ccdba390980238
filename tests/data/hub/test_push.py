"""One commit or none: `push_folder` with the real client against a local Hub that fails where it is told to."""

import json
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.utils import get_token

from rolellm.core.errors import HubError, HubLoginError, HubUnreachableError, SettingsError
from rolellm.data.hub import PushOptions, check_repo, push_folder
from rolellm.data.hub import push as push_module
from rolellm.data.hub.readme import BEGIN, END

# The client's own way of sending large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "me/thing"
CARD = "---\nlicense: mit\ntags:\n- ours\n---\n\n# Ours\n"
EVER = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "sub").mkdir(parents=True)
    (made / "README.md").write_text(CARD)
    (made / "config.json").write_text("{}\n")
    (made / "weights-00001-of-00002.safetensors").write_bytes(b"\0one")
    (made / "sub" / "weights-00002-of-00002.safetensors").write_bytes(b"\0two" * 1000)
    return made


@pytest.fixture
def options(hub: Any, monkeypatch: pytest.MonkeyPatch) -> PushOptions:
    monkeypatch.setattr(push_module, "_FIRST_WAIT", 0.01)
    return PushOptions(endpoint=hub.endpoint)


@pytest.fixture
def api(hub: Any) -> HfApi:
    return HfApi(endpoint=hub.endpoint)


@pytest.fixture
def fast_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own retries wait up to 23 seconds."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))


def held(hub: Any, revision: str = "main", kind: str = "model") -> dict[str, bytes]:
    """What a revision holds, as a reader gets it."""
    folder = Path(
        snapshot_download(REPO, repo_type=kind, revision=revision, endpoint=hub.endpoint, force_download=True)
    )
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def commits(api: HfApi, revision: str = "main") -> list[str]:
    return [commit.commit_id for commit in api.list_repo_commits(REPO, revision=revision)]


def change(hub: Any, **files: bytes) -> str:
    """Somebody else's commit; `__` in a name stands for a dot."""
    changes = [{"key": "file", "value": {"path": name.replace("__", "."), "content": files[name]}} for name in files]
    oid: str = hub.store.commit("model", REPO, "main", [{"key": "header", "value": {"summary": "theirs"}}, *changes])
    return oid


def test_a_folder_is_one_commit(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    done = push_folder(folder, REPO, options)
    assert done.changed
    assert len(commits(api)) == 2, "the Hub's first one, and ours"
    assert done.revision == commits(api)[0]
    assert done.url == f"{hub.endpoint}/{REPO}"
    found = held(hub)
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "README.md":
            assert found[file.relative_to(folder).as_posix()] == file.read_bytes()
    assert b"license: mit" in found["README.md"]
    assert b"# Ours" in found["README.md"]
    assert set(done.sent) == set(found) - {".gitattributes"}
    assert done.sent["sub/weights-00002-of-00002.safetensors"] == 4000
    assert api.repo_info(REPO).private


def test_the_same_again_is_no_commit(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    first = push_folder(folder, REPO, options)
    hub.asked.clear()
    again = push_folder(folder, REPO, options)
    assert (again.changed, again.revision, again.sent) == (False, first.revision, {})
    assert len(commits(api)) == 2
    assert not {"commit", "preupload", "lfs_batch", "lfs_upload"} & set(hub.asked)


def test_files_of_ours_go_and_files_of_others_stay(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    push_folder(folder, REPO, options)
    change(hub, notes__txt=b"mine")
    (folder / "weights-00001-of-00002.safetensors").rename(folder / "weights.safetensors")
    (folder / "sub" / "weights-00002-of-00002.safetensors").unlink()
    done = push_folder(folder, REPO, options)
    assert done.removed == ("sub/weights-00002-of-00002.safetensors", "weights-00001-of-00002.safetensors")
    found = held(hub)
    assert found["notes.txt"] == b"mine"
    ours = {".gitattributes", ".rolellm.json", "README.md", "config.json", "weights.safetensors"}
    assert set(found) == {*ours, "notes.txt"}


def test_a_file_of_another_is_not_replaced_unasked(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    api.create_repo(REPO)
    theirs = change(hub, config__json=b'{"theirs": true}')
    with pytest.raises(HubError, match=r"holds files that rolellm did not write \(config\.json\).*--overwrite"):
        push_folder(folder, REPO, options)
    assert commits(api)[0] == theirs
    replacing = PushOptions(endpoint=hub.endpoint, overwrite=True)
    assert push_folder(folder, REPO, replacing).changed
    assert held(hub)["config.json"] == b"{}\n"
    assert held(hub, theirs)["config.json"] == b'{"theirs": true}'


def test_text_and_keys_of_a_person_are_kept(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    push_folder(folder, REPO, options)
    card = held(hub)["README.md"].decode()
    card = card.replace("license: mit", "license: mit  # checked\nthumbnail: a.png").replace("- ours", "- ours\n- mine")
    change(hub, README__md=f"{card}\n## My notes\n\nRead **this**.\n".encode())
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [ours, new]\n---\n# Ours, newer\n")
    push_folder(folder, REPO, options)
    found = held(hub)["README.md"].decode()
    assert "\n## My notes\n\nRead **this**.\n" in found
    assert "thumbnail: a.png" in found
    assert "# Ours, newer" in found
    assert "# Ours\n" not in found
    assert api.repo_info(REPO).sha == push_folder(folder, REPO, options).revision, "stable from here on"


def test_a_branch_is_made_and_main_is_left_alone(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    push_folder(folder, REPO, options)
    main = commits(api)
    (folder / "config.json").write_text("[]")
    branch = PushOptions(endpoint=hub.endpoint, branch="trial", message="a trial")
    done = push_folder(folder, REPO, branch)
    assert commits(api) == main
    assert commits(api, "trial") == [done.revision, *main]
    assert api.list_repo_commits(REPO, revision="trial")[0].title == "a trial"
    assert push_folder(folder, REPO, branch).changed is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "error", "times", "after"),
    [
        pytest.param("preupload", 500, 2, False, id="preupload-500-twice"),
        pytest.param("lfs_upload", 500, 2, False, id="lfs-upload-500-twice"),
        pytest.param("lfs_upload", None, 1, False, id="lfs-upload-dropped"),
        pytest.param("lfs_upload", None, 1, True, id="lfs-upload-done-but-dropped"),
        pytest.param("commit", 409, 1, False, id="commit-409"),
        pytest.param("commit", 412, 2, False, id="commit-412-twice"),
        pytest.param("commit", 429, 1, False, id="commit-429"),
        pytest.param("commit", None, 1, False, id="commit-dropped-before"),
        pytest.param("commit", None, 1, True, id="commit-done-but-dropped"),
        pytest.param("commit", 500, EVER, True, id="commit-done-but-500-ever"),
    ],
)
@pytest.mark.usefixtures("fast_client")
def test_what_passes_is_tried_again(
    point: str, error: int | None, times: int, after: bool, hub: Any, api: HfApi, folder: Path, options: PushOptions
) -> None:
    first = push_folder(folder, REPO, options)
    (folder / "weights-00001-of-00002.safetensors").write_bytes(b"\0another")
    (folder / "README.md").write_text(CARD.replace("# Ours", "# Newer"))
    hub.fail(point, error, times=times, after=after)
    done = push_folder(folder, REPO, options)
    assert done.changed
    assert set(done.sent) == {"weights-00001-of-00002.safetensors", "README.md"}
    assert commits(api) == [done.revision, first.revision, commits(api)[2]], "one commit more, and only one"
    assert held(hub)["weights-00001-of-00002.safetensors"] == b"\0another"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "error", "kind", "words"),
    [
        pytest.param("info", 401, HubLoginError, "hf auth login", id="info-401"),
        pytest.param("lfs_upload", None, HubUnreachableError, "run the same command again", id="lfs-upload-dropped"),
        pytest.param("lfs_batch", 403, HubLoginError, "may not write to me/thing", id="lfs-batch-403"),
        pytest.param("commit", 409, HubError, "changed during every attempt", id="commit-409"),
        pytest.param("commit", 500, HubUnreachableError, "before is unchanged", id="commit-500"),
        pytest.param("commit", None, HubUnreachableError, "before is unchanged", id="commit-dropped"),
        pytest.param("commit", 422, HubError, "422: down for tests", id="commit-422"),
    ],
)
@pytest.mark.usefixtures("fast_client")
def test_what_does_not_pass_leaves_what_was_there(
    point: str,
    error: int | None,
    kind: type[HubError],
    words: str,
    hub: Any,
    api: HfApi,
    folder: Path,
    options: PushOptions,
) -> None:
    push_folder(folder, REPO, options)
    before, history = held(hub), commits(api)
    (folder / "weights-00001-of-00002.safetensors").write_bytes(b"\0another")
    (folder / "config.json").unlink()
    hub.fail(point, error, times=EVER)
    with pytest.raises(kind, match=words):
        push_folder(folder, REPO, options)
    hub.faults.clear()
    assert commits(api) == history
    assert held(hub) == before
    done = push_folder(folder, REPO, options)
    assert done.changed
    assert "config.json" not in held(hub)


@pytest.mark.parametrize("error", [400, 401, 403, 422, 500])
@pytest.mark.usefixtures("fast_client")
def test_a_token_that_the_hub_echoes_is_not_shown(
    error: int, hub: Any, folder: Path, options: PushOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "hf_Zq81vXw0LmT4cR7yPd2NhK9bQeWuJs"
    monkeypatch.setenv("HF_TOKEN", token)
    hub.said = f"your headers were Authorization: Bearer {token}"
    hub.fail("info", error, times=EVER)
    with pytest.raises(HubError, match="your headers were") as raised:
        push_folder(folder, REPO, options)
    shown = "".join(traceback.format_exception(raised.value))
    assert token not in shown and token[:8] not in shown and token[-8:] not in shown


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        pytest.param(401, HubLoginError, "rejected the token", id="401"),
        pytest.param(403, HubLoginError, "may not write to me/thing", id="403"),
        pytest.param(500, HubUnreachableError, "500: down for tests", id="500"),
        pytest.param(None, HubUnreachableError, "127.0.0.1.* failed", id="dropped"),
    ],
)
def test_a_repository_that_cannot_be_made(
    error: int | None, kind: type[HubError], words: str, hub: Any, folder: Path, options: PushOptions
) -> None:
    hub.fail("create", error, times=EVER)
    with pytest.raises(kind, match=words):
        push_folder(folder, REPO, options)


def test_a_commit_in_between_is_merged_with(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    first = push_folder(folder, REPO, options)
    (folder / "config.json").write_text("[]")
    (folder / "README.md").write_text(CARD.replace("# Ours", "# Newer"))
    readme = held(hub)["README.md"]
    carry_out, theirs = hub.commit, []

    def in_between(**request: Any) -> Any:
        if not theirs:
            theirs.append(change(hub, README__md=readme + b"\nIn between.\n", notes__txt=b"theirs"))
        return carry_out(**request)

    hub.commit = in_between
    done = push_folder(folder, REPO, options)
    assert commits(api)[:3] == [done.revision, theirs[0], first.revision]
    found = held(hub)
    assert (found["config.json"], found["notes.txt"]) == (b"[]", b"theirs")
    assert b"In between." in found["README.md"]
    assert b"# Newer" in found["README.md"]


def test_a_change_back_in_between_is_not_lost(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    """What equals the revision that the first try saw may differ from the one that the second try sees."""
    push_folder(folder, REPO, options)
    (folder / "config.json").write_text("[]")
    carry_out, done_once = hub.commit, []

    def in_between(**request: Any) -> Any:
        if not done_once:
            done_once.append(True)
            change(hub, **{"weights-00001-of-00002__safetensors": b"\0theirs"})
        return carry_out(**request)

    hub.commit = in_between
    push_folder(folder, REPO, options)
    assert held(hub)["weights-00001-of-00002.safetensors"] == b"\0one"


def test_a_gitignore_there_is_not_obeyed_in_silence(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    api.create_repo(REPO)
    change(hub, __gitignore=b"*.safetensors\n")
    before = commits(api)
    with pytest.raises(HubError, match=r"\.gitignore excludes sub/weights-00002-of-00002\.safetensors, weights-00001"):
        push_folder(folder, REPO, options)
    assert commits(api) == before


@pytest.mark.parametrize(
    ("readme", "words"),
    [
        pytest.param(b"---\na: [1\n---\n", "not valid YAML", id="bad-yaml"),
        pytest.param(b"---\n- a\n---\n", "not a YAML mapping", id="a-list"),
        pytest.param(b"\xff\xfe", "not UTF-8", id="not-utf-8"),
        pytest.param(f"{BEGIN}\nhm".encode(), "restore the pair", id="begin-alone"),
        pytest.param(f"{END}\n{BEGIN}".encode(), "restore the pair", id="wrong-order"),
        pytest.param(f"{BEGIN}\n{BEGIN}\n{END}".encode(), "restore the pair", id="two-begins"),
    ],
)
def test_a_readme_that_cannot_be_merged_with_is_left_alone(
    readme: bytes, words: str, hub: Any, api: HfApi, folder: Path, options: PushOptions
) -> None:
    api.create_repo(REPO)
    theirs = change(hub, README__md=readme)
    with pytest.raises(HubError, match=words):
        push_folder(folder, REPO, options)
    assert commits(api)[0] == theirs


def test_a_dry_run_asks_the_hub_for_nothing(hub: Any, folder: Path) -> None:
    done = push_folder(folder, REPO, PushOptions(endpoint=hub.endpoint, dry_run=True))
    assert hub.asked == []
    assert (done.revision, done.changed) == (None, None)
    assert list(done.sent) == [
        "README.md",
        "config.json",
        "sub/weights-00002-of-00002.safetensors",
        "weights-00001-of-00002.safetensors",
    ]
    assert json.loads(json.dumps(done.to_dict()))["sent"]["config.json"] == 3


def test_without_a_token_nothing_is_asked(
    hub: Any, folder: Path, options: PushOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert get_token() is None
    with pytest.raises(HubLoginError, match=r"hf auth login.*HF_TOKEN"):
        push_folder(folder, REPO, options)
    assert hub.asked == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("thing", id="no-owner"),
        pytest.param("a/b/c", id="three-parts"),
        pytest.param("./runs", id="a-path"),
        pytest.param("me/李白", id="other-letters"),
    ],
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a repository"):
        check_repo(name)


def test_a_record_that_is_not_ours_is_refused(hub: Any, api: HfApi, folder: Path, options: PushOptions) -> None:
    api.create_repo(REPO)
    change(hub, __rolellm__json=b"[]")
    with pytest.raises(HubError, match=r"\.rolellm\.json in the repository is not what rolellm wrote"):
        push_folder(folder, REPO, options)


def test_bad_metadata_is_refused_by_the_hub_before_anything_is_committed(
    hub: Any, api: HfApi, folder: Path, options: PushOptions
) -> None:
    (folder / "README.md").write_text("---\nlicense: ''\n---\n")
    with pytest.raises(HubError, match="not allowed to be empty"):
        push_folder(folder, REPO, options)
    assert len(commits(api)) == 1


def test_offline_is_said(hub: Any, folder: Path, options: PushOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE is set"):
        push_folder(folder, REPO, options)


def test_an_empty_folder_is_refused(tmp_path: Path, options: PushOptions) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(HubError, match="contains nothing"):
        push_folder(tmp_path / "empty", REPO, options)
