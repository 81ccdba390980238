"""A folder becomes one commit on the Hub, or none at all: readers find the revision before it, or all of this one.

Whatever fails for a moment is tried again, and each try begins with a look at what is there: so a commit that landed
although its answer was lost is seen for what it is, and one by somebody else in between is merged with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rolellm.core.errors import DataError, HubError, HubLoginError, HubUnreachableError, SettingsError
from rolellm.core.jsonl import parse_object
from rolellm.core.progress import track_progress
from rolellm.core.result import Result
from rolellm.core.scrub import hide_hub_token
from rolellm.core.settings import Advanced, Field, settings
from rolellm.core.table import Table
from rolellm.core.text import join_names
from rolellm.core.typed_json import read_as
from rolellm.data.hub.readme import merge_card, read_card

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.hf_api import RepoFile

README = "README.md"
RECORD = ".rolellm.json"
"""Kept in each repository: which of its files are ours, and the front matter that we wrote."""
MAIN = "main"
CONFLICT = (409, 412)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
# Tries, and seconds before the second, doubled before each one after: those of huggingface_hub's `http_backoff`.
_TRIES, _FIRST_WAIT = 5, 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """The files and front matter that the last push wrote.

    Attributes:
        files: The paths, without the README.
        card: The README's front matter, as far as it was ours.
    """

    files: list[str]
    card: dict[str, Any]


def find_status(error: BaseException) -> int | None:
    """The HTTP status behind an error, if it is an answer from the Hub."""
    for cause in _chain(error):
        status: int | None = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return status
    return None


def is_transient(error: BaseException) -> bool:
    """Tell whether a retry of the same request may succeed."""
    status = find_status(error)
    if status is not None:
        return status in _PASSING
    # The client reads JSON out of what may be a gateway's error page.
    return any(isinstance(cause, _import_http_library().TransportError | JSONDecodeError) for cause in _chain(error))


def _import_http_library() -> Any:
    """The library that huggingface_hub speaks HTTP with: httpx in its version 1, httpx2 since."""
    from huggingface_hub.errors import HfHubHTTPError

    return import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def translate_error(error: BaseException, repo: str, endpoint: str) -> HubError:
    """An error of the Hub's client as one of ours, with the way out.

    Args:
        error: What the client raised.
        repo: The repository that is published to.
        endpoint: The Hub's address.
    """
    status = find_status(error)
    reason = _describe_error(error)
    if status == 401:
        return HubLoginError(
            f"{endpoint} rejected the token ({reason}); log in again with `hf auth login`, or set HF_TOKEN"
        )
    if status == 403:
        return HubLoginError(
            f"this token may not write to {repo} ({reason}); use a token with write access, or a repository of your own"
        )
    if status in CONFLICT:
        return HubError(
            f"{repo} changed during every attempt to publish ({reason}); nothing was published, run it again"
        )
    if is_transient(error):
        return HubUnreachableError(
            f"{endpoint} failed ({reason}). What was on {repo} before is unchanged; run the same "
            "command again to continue the upload"
        )
    return HubError(f"{repo} could not be published: {reason}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _describe_error(error: BaseException) -> str:
    """Return the last word on what went wrong: the server's, or the deepest cause's."""
    for cause in _chain(error):
        server_message = getattr(cause, "server_message", None)
        if server_message:
            return f"{find_status(cause)}: {hide_hub_token(server_message)}"
    # The last cause of the loop is the deepest.
    first_line = hide_hub_token(cause).strip().partition("\n")[0]
    return first_line.rstrip(".") or type(cause).__name__


@settings
class PushOptions:
    """Options for publishing.

    Attributes:
        private: Make a newly created repository private.
        branch: Branch to push to; created if missing.
        message: Commit title.
        overwrite: Replace files of the same name that rolellm did not write.
        dry_run: List what would be sent; send nothing.
        kind: What the repository is.
        endpoint: Another Hub than the one that HF_ENDPOINT names.
    """

    private: bool = Field(default=True, json_schema_extra={"flag": "private/--public"})
    branch: Advanced[str] = Field(default=MAIN, json_schema_extra={"flag": "revision"})
    message: str | None = Field(default=None, json_schema_extra={"cli": False})
    overwrite: bool = False
    dry_run: bool = False
    kind: Literal["model", "dataset"] = Field(default="model", json_schema_extra={"cli": False})
    endpoint: str | None = Field(default=None, json_schema_extra={"cli": False})


@dataclass(frozen=True, slots=True, repr=False)
class Pushed(Result):
    """The result of a push.

    Attributes:
        repo: The repository.
        url: Its page.
        revision: The commit that holds the folder now; ``None`` after a dry run.
        changed: Whether there was anything to publish; ``None`` after a dry run.
        sent: Bytes by path, of what was new or differed; after a dry run, of all there is.
        removed: Files of ours that were taken away.
    """

    repo: str
    url: str
    revision: str | None
    changed: bool | None
    sent: Mapping[str, int]
    removed: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """Say at which revision the repository is now."""
        if self.changed is None:
            return []
        if self.changed:
            return [f"revision {self.revision}"]
        return [f"nothing to do: {self.url} is up to date at {self.revision}"]

    def tables(self) -> list[Table]:
        """Build the table of files, where there was anything to publish."""
        if self.changed is False:
            return []
        rows: list[tuple[str, str | int]] = [*self.sent.items()]
        rows += [(path, "removed") for path in self.removed]
        title = "Would send to" if self.changed is None else "Sent to"
        return [Table.from_rows(f"{title} {self.url}", ("file", "bytes"), rows)]


def check_repo(repo: str) -> None:
    """Check the name of a repository.

    Raises:
        SettingsError: When it is not ``OWNER/NAME`` in the characters that the Hub takes.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not in __all__

    owner, slash, name = repo.partition("/")
    if not (owner and slash and name and repo.isascii()):
        raise SettingsError(f"{repo!r} is not a repository; write OWNER/NAME, such as ada/role-llama")
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise SettingsError(f"{repo!r} is not a repository: {error}") from error


def check_login() -> None:
    """Check that there is a token for the Hub, and that it may be asked; whether the token is good, only it can say.

    Raises:
        HubLoginError: When there is none.
        HubUnreachableError: When the Hub's client was told to stay offline.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise HubUnreachableError(
            "HF_HUB_OFFLINE is set, so nothing can be published; unset it (or TRANSFORMERS_OFFLINE)"
        )
    if get_token() is None:
        raise HubLoginError("not logged in to the Hub; run `hf auth login`, or set HF_TOKEN")


def check_push(repo: str, options: PushOptions) -> None:
    """Check all that can be checked before there is a folder to publish, as `check_repo` and `check_login` do."""
    check_repo(repo)
    if not options.dry_run:
        check_login()


def push_folder(folder: Path, repo: str, options: PushOptions | None = None) -> Pushed:
    """Publish a folder as one commit; publish nothing where all of it is there already.

    ``README.md`` in the folder is taken as our card and merged into the one on the Hub, see `rolellm.data.hub.readme`.
    Files of an earlier push that the folder does not have any more are removed; files of others stay.

    Args:
        folder: What to publish, with everything under it.
        repo: ``OWNER/NAME``; made where it is not there.
        options: How.

    Raises:
        SettingsError: When the name of the repository is none.
        HubLoginError: Without a token, or with one that may not write there.
        HubUnreachableError: When the Hub cannot be reached, or keeps failing.
        HubError: When it refuses, or something there cannot be merged with.
    """
    chosen = options or PushOptions()
    check_push(repo, chosen)
    push = _Push(folder, repo, chosen)
    if chosen.dry_run:
        return Pushed(repo, push.url, None, None, push.measure_all())
    try:
        return push.run()
    except (_import_http_library().HTTPError, OSError, RuntimeError, JSONDecodeError) as error:
        # What the client raised may hold the token, and would be shown with a traceback.
        raise translate_error(error, repo, push.api.endpoint) from None


@dataclass(frozen=True, slots=True)
class _Changes:
    """What one try has to change.

    Attributes:
        head: The branch's commit, on which ours goes.
        added: Contents by path.
        removed: Paths.
    """

    head: str
    added: dict[str, CommitOperationAdd]
    removed: tuple[str, ...]


class _Push:
    """One push: the folder, and where to.

    Raises:
        HubError: When there is nothing in the folder, or its card has bad front matter.
    """

    def __init__(self, folder: Path, repo: str, options: PushOptions) -> None:
        from huggingface_hub import CommitOperationAdd, HfApi

        self.api = HfApi(endpoint=options.endpoint)
        self.repo, self.options = repo, options
        self.target: dict[str, Any] = {"repo_id": repo, "repo_type": options.kind}
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        if not files:
            raise HubError(f"{folder} contains nothing to publish")
        card_file = files.pop(README, None)
        self.card = read_card(card_file.read_text(encoding="utf-8")) if card_file else None
        files.pop(RECORD, None)
        # Hashes are computed once, however often the push is tried.
        self.contents = {name: CommitOperationAdd(name, str(file)) for name, file in files.items()}
        # The branch's commit before the first try, and what the last try sent.
        self.first_head: str | None = None
        self.last_try: _Changes | None = None

    @property
    def url(self) -> str:
        """The repository's page."""
        kind = "datasets/" if self.options.kind == "dataset" else ""
        return f"{self.api.endpoint}/{kind}{self.repo}"

    def measure_all(self) -> dict[str, int]:
        """Measure the bytes by path of all there is, our card as it would go to an empty repository."""
        sizes = _measure_sizes(self.contents)
        if self.card is not None:
            sizes[README] = len(merge_card(self.card, None, {}).encode("utf-8"))
        return dict(sorted(sizes.items()))

    def run(self) -> Pushed:
        """Publish, in as many tries as it takes."""
        for number in range(_TRIES - 1):
            try:
                return self._try()
            except HubError:
                raise
            except Exception as error:
                may_pass = is_transient(error) or find_status(error) in CONFLICT
                if not may_pass:
                    raise
                time.sleep(_FIRST_WAIT * 2**number)
        return self._try()

    def _try(self) -> Pushed:
        options = self.options
        self.api.create_repo(**self.target, private=options.private, exist_ok=True)
        if options.branch != MAIN:
            self.api.create_branch(**self.target, branch=options.branch, exist_ok=True)
        changes = self._compare()
        self.first_head = self.first_head or changes.head
        if changes.added or changes.removed:
            self.last_try = changes
            return self._report(self._create_commit(changes), changes)
        if changes.head != self.first_head and self.last_try:
            # A commit that landed, although its answer was lost.
            return self._report(changes.head, self.last_try)
        return Pushed(self.repo, self.url, changes.head, False, {})

    def _report(self, revision: str, changes: _Changes) -> Pushed:
        return Pushed(self.repo, self.url, revision, True, _measure_sizes(changes.added), changes.removed)

    def _compare(self) -> _Changes:
        """Compare the folder with the branch.

        Raises:
            HubError: When there are files of others that may not be replaced.
        """
        from huggingface_hub import CommitOperationAdd
        from huggingface_hub.hf_api import RepoFile

        head = self.api.repo_info(**self.target, revision=self.options.branch).sha
        if head is None:
            raise HubError(f"{self.repo} has no commit to publish on")
        tree = self.api.list_repo_tree(**self.target, revision=head, recursive=True)
        hub_files = {item.path: item for item in tree if isinstance(item, RepoFile)}
        before = self._read_record(head) if RECORD in hub_files else Record([], {})
        added = {}
        for name, content in self.contents.items():
            if not _is_there(content, hub_files.get(name)):
                added[name] = content
        foreign = sorted(name for name in added if name in hub_files and name not in before.files)
        if foreign and not self.options.overwrite:
            raise HubError(
                f"the repository holds files that rolellm did not write ({join_names(foreign)}); name another "
                "repository, or replace them with --overwrite (they stay in its history)"
            )
        record = {"format": 1, "files": sorted(self.contents), "card": self.card.data if self.card else {}}
        own_texts = {RECORD: json.dumps(record, ensure_ascii=False, indent=2) + "\n"}
        if self.card is not None:
            current = self._download_text(README, head) if README in hub_files else None
            own_texts[README] = merge_card(self.card, current, before.card)
        for name, text in own_texts.items():
            content = CommitOperationAdd(name, text.encode("utf-8"))
            if not _is_there(content, hub_files.get(name)):
                added[name] = content
        outdated = set(before.files).intersection(hub_files).difference(self.contents, own_texts)
        ordered = {name: added[name] for name in sorted(added)}
        return _Changes(head, ordered, tuple(sorted(outdated)))

    def _read_record(self, head: str) -> Record:
        text = self._download_text(RECORD, head)
        try:
            return read_as(Record, parse_object(text.encode("utf-8"), RECORD), RECORD)
        except DataError as error:
            raise HubError(f"{RECORD} in the repository is not what rolellm wrote; delete it there first") from error

    def _download_text(self, path: str, head: str) -> str:
        file = self.api.hf_hub_download(**self.target, filename=path, revision=head)
        try:
            # Not read_text, which would take \r out of line ends.
            return Path(file).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise HubError(
                f"{path} in the repository is not UTF-8 text ({error.reason}); fix it there first"
            ) from error

    def _create_commit(self, changes: _Changes) -> str:
        """Send contents and commit on top of the head and nothing else; return the commit's id."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        options = self.options
        additions = []
        for name, content in track_progress(changes.added.items(), "hashing", "files"):
            # Operations are for one try each, hashes are not.
            addition = CommitOperationAdd(name, content.path_or_fileobj)
            addition.upload_info.sha256 = content.upload_info.sha256
            additions.append(addition)
        try:
            # Nothing that a reader sees changes here; the client is patient by itself.
            self.api.preupload_lfs_files(**self.target, additions=additions, revision=options.branch, free_memory=False)
            # The client would leave these out of the commit and not say so.
            ignored = [addition.path_in_repo for addition in additions if addition._should_ignore]
            if ignored:
                raise HubError(f"the repository's .gitignore excludes {join_names(ignored)}; change it there first")
            commit = self.api.create_commit(
                **self.target,
                operations=[*additions, *map(CommitOperationDelete, changes.removed)],
                commit_message=options.message or "Publish with rolellm",
                revision=options.branch,
                parent_commit=changes.head,
            )
        except JSONDecodeError:
            raise
        except ValueError as error:  # So the client refuses bad metadata.
            raise HubError(f"{self.repo} could not be published: {hide_hub_token(error)}") from None
        return str(commit.oid)


def _is_there(content: CommitOperationAdd, hub_file: RepoFile | None) -> bool:
    """Tell whether a file on the Hub holds this content; nothing is fetched."""
    from huggingface_hub.utils.sha import git_hash

    if hub_file is None or hub_file.size != content.upload_info.size:
        return False
    if hub_file.lfs:
        return hub_file.lfs.sha256 == content.upload_info.sha256.hex()
    with content.as_file() as file:
        return hub_file.blob_id == git_hash(file.read())


def _measure_sizes(contents: Mapping[str, CommitOperationAdd]) -> dict[str, int]:
    return {path: content.upload_info.size for path, content in contents.items()}
