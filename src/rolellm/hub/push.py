"""A folder becomes one commit on the Hub, or none at all: readers find the revision before it, or all of this one.

Whatever fails for a moment is tried again, and each try begins with a look at what is there: so a commit that landed
although its answer was lost is seen for what it is, and one by somebody else in between is merged with.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rolellm.core.errors import HubError, HubLoginError, HubUnreachableError, SettingsError
from rolellm.core.fingerprint import hash_bytes, hash_file
from rolellm.core.scrub import without_hub_token
from rolellm.core.text import listed
from rolellm.hub.readme import merge_card, read_card
from rolellm.runtime.progress import counted

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import RepoFile

# --- What a push has to change: the files of a folder against those of a revision on the Hub


README = "README.md"
RECORD = ".rolellm.json"
"""Kept in each repository: which of its files are ours, and the front matter that we wrote."""


class Content:
    """A file to publish: one on disk, or bytes made here.

    Args:
        source: The file or the bytes.
    """

    def __init__(self, source: Path | bytes) -> None:
        self.source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """What the Hub calls a large file by, in hex; computed once, however often a push is tried."""
        return hash_bytes(self.source) if isinstance(self.source, bytes) else hash_file(self.source)

    @cached_property
    def blob_id(self) -> str:
        """What git calls a small file by, in hex."""
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def equals(self, there: RepoFile) -> bool:
        """Whether the file on the Hub is the same, without fetching it."""
        if there.size != self.size:
            return False
        return there.lfs.sha256 == self.sha256 if there.lfs else there.blob_id == self.blob_id


@dataclass(frozen=True, slots=True)
class Record:
    """What we wrote into a repository the last time.

    Attributes:
        files: The paths, without the README.
        card: The README's front matter, as far as it was ours.
    """

    files: frozenset[str] = frozenset()
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, content: str) -> Record:
        """Read what `to_bytes` wrote.

        Raises:
            HubError: When it is something else.
        """
        try:
            values = json.loads(content)
            return cls(frozenset(values["files"]), dict(values["card"]))
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(f"{RECORD} in the repository is not what rolellm wrote; delete it there first") from error

    def to_bytes(self) -> bytes:
        """The record as it is kept."""
        value = {"format": 1, "files": sorted(self.files), "card": self.card}
        return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


@dataclass(frozen=True, slots=True)
class There:
    """A revision on the Hub.

    Attributes:
        head: Its commit.
        files: Its files, by path.
        readme: Its README, to the letter.
        record: What we wrote there before; ``None`` where we never did.
    """

    head: str
    files: Mapping[str, RepoFile]
    readme: str | None
    record: Record | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to change.

    Attributes:
        send: Contents that are new or differ, by path.
        remove: Files that we wrote before and that are not among these any more.
    """

    send: Mapping[str, Content]
    remove: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether everything is there already."""
        return not self.send and not self.remove


class Folder:
    """The folder to publish.

    Args:
        path: The folder; ``README.md`` in it is our card.

    Raises:
        HubError: When there is nothing in it, or its card has bad front matter.
    """

    def __init__(self, path: Path) -> None:
        files = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
        if not files:
            raise HubError(f"{path} holds nothing to publish")
        self.contents = {name: Content(file) for name, file in files.items() if name not in (README, RECORD)}
        self.card = read_card(files[README].read_text(encoding="utf-8")) if README in files else None

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by path of all there is, our card as it would go to an empty repository."""
        sizes = {name: content.size for name, content in self.contents.items()}
        if self.card is not None:
            sizes[README] = len(merge_card(self.card, None, {}).encode("utf-8"))
        return dict(sorted(sizes.items()))

    def plan(self, there: There, *, overwrite: bool) -> Plan:
        """What makes a revision hold this folder.

        Args:
            there: The revision.
            overwrite: Replace files of the same name that we did not write.

        Raises:
            HubError: When there are such files, and they may not be replaced.
        """
        before = there.record or Record()
        wanted = dict(self.contents)
        changed = {name for name in wanted if name not in there.files or not wanted[name].equals(there.files[name])}
        foreign = sorted(name for name in changed if name in there.files and name not in before.files)
        if foreign and not overwrite:
            raise HubError(
                f"the repository holds files that rolellm did not write ({listed(foreign)}); name another repository, "
                "or replace them with --overwrite (they stay in its history)"
            )
        wanted[RECORD] = Content(Record(frozenset(self.contents), self.card.data if self.card else {}).to_bytes())
        if self.card is not None:
            wanted[README] = Content(merge_card(self.card, there.readme, before.card).encode("utf-8"))
        own = {README, RECORD} & wanted.keys()
        changed |= {name for name in own if name not in there.files or not wanted[name].equals(there.files[name])}
        gone = sorted(name for name in before.files if name not in wanted and name in there.files)
        return Plan({name: wanted[name] for name in sorted(changed)}, tuple(gone))


# --- What goes wrong between here and the Hub: which of it passes, and what to say of the rest


_Found = TypeVar("_Found")
_PASSING = (408, 425, 429, 500, 502, 503, 504)
CONFLICT = (409, 412)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often something is tried, and how long to wait in between; our choice.

    Attributes:
        tries: At most so many.
        first_wait: Seconds before the second try; doubled before each one after.
    """

    tries: int = 5
    first_wait: float = 1.0

    def attempts(self) -> Iterator[bool]:
        """One item a try, after the wait before it: whether it is the last."""
        for number in range(self.tries):
            if number:
                time.sleep(self.first_wait * 2 ** (number - 1))
            yield number == self.tries - 1

    def call(self, run: Callable[[], _Found]) -> _Found:
        """Call something that may fail for a moment."""
        for last in self.attempts():
            try:
                return run()
            except Exception as error:
                if last or not passes(error):
                    raise
        raise ValueError("Patience.tries has to be at least 1")


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, if it is an answer from the Hub."""
    for cause in _chain(error):
        status: int | None = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return status
    return None


def passes(error: BaseException) -> bool:
    """Whether the same request may do better in a moment."""
    import httpx2

    status = status_of(error)
    if status is not None:
        return status in _PASSING
    # The client reads JSON out of what may be a gateway's error page.
    return any(isinstance(cause, httpx2.TransportError | json.JSONDecodeError) for cause in _chain(error))


def translated(error: BaseException, repo: str, endpoint: str) -> HubError:
    """An error of the Hub's client as one of ours, with the way out.

    Args:
        error: What the client raised.
        repo: The repository that is published to.
        endpoint: The Hub's address.
    """
    status, reason = status_of(error), _reason(error)
    if status == 401:
        return HubLoginError(
            f"{endpoint} does not take the token ({reason}); log in anew with `hf auth login`, or set HF_TOKEN"
        )
    if status == 403:
        return HubLoginError(
            f"this token may not write to {repo} ({reason}); take one with write access, or a repository of your own"
        )
    if status in CONFLICT:
        return HubError(
            f"{repo} changed under every try to publish to it ({reason}); nothing was published, run it again"
        )
    if passes(error):
        return HubUnreachableError(
            f"{endpoint} could not be used ({reason}). What was on {repo} before can still be loaded; run the same "
            "again, and it goes on from what has arrived"
        )
    return HubError(f"{repo} could not be published: {reason}")


@contextmanager
def refusals(repo: str) -> Iterator[None]:
    """Make an error of ours of what the client says by `ValueError`, such as bad metadata; bugs elsewhere stay bugs."""
    try:
        yield
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise HubError(f"{repo} could not be published: {without_hub_token(str(error))}") from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _reason(error: BaseException) -> str:
    """The last word on what went wrong: the server's, or the deepest cause's."""
    for cause in _chain(error):
        said = getattr(cause, "server_message", None)
        if said:
            return f"{status_of(cause)}: {without_hub_token(said)}"
    deepest = list(_chain(error))[-1]
    lines = without_hub_token(str(deepest)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(deepest).__name__


# --- A folder becomes one commit on the Hub, or none at all: readers find the revision before it, or all of this


MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How to publish.

    Attributes:
        kind: What the repository is.
        private: Whether a repository that is made is private; one that exists stays as it is.
        branch: Where to; made from ``main`` where it is not there.
        message: The commit's title.
        dry_run: Only say what would be sent, without asking the Hub for anything.
        overwrite: Replace files of the same name that we did not write.
        endpoint: Another Hub than the one that ``HF_ENDPOINT`` names.
        patience: With failures that pass.
    """

    kind: Literal["model", "dataset"] = "model"
    private: bool = True
    branch: str = MAIN
    message: str = "Publish with rolellm"
    dry_run: bool = False
    overwrite: bool = False
    endpoint: str | None = None
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was published.

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
    sent: dict[str, int]
    removed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "repo": self.repo,
            "url": self.url,
            "revision": self.revision,
            "changed": self.changed,
            "sent": self.sent,
            "removed": list(self.removed),
        }


def check_repo(repo: str) -> None:
    """Check the name of a repository.

    Raises:
        SettingsError: When it is not ``OWNER/NAME`` in the characters that the Hub takes.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not in __all__

    owner, slash, name = repo.partition("/")
    if not (owner and slash and name):
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
    from huggingface_hub import get_token, is_offline_mode

    if is_offline_mode():
        raise HubUnreachableError(
            "HF_HUB_OFFLINE is set, so nothing can be published; unset it (or TRANSFORMERS_OFFLINE)"
        )
    if get_token() is None:
        raise HubLoginError("there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN")


def check_push(repo: str, options: PushOptions) -> None:
    """Check all that can be checked before there is a folder to publish, as `check_repo` and `check_login` do."""
    check_repo(repo)
    if not options.dry_run:
        check_login()


def push_folder(folder: Path, repo: str, options: PushOptions | None = None) -> Pushed:
    """Publish a folder as one commit; publish nothing where all of it is there already.

    ``README.md`` in the folder is taken as our card and merged into the one on the Hub, see `rolellm.hub.readme`. Files
    of an earlier push that the folder does not have any more are removed; files of others stay.

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
    import httpx2
    from huggingface_hub import HfApi

    mine = Folder(folder)
    api = HfApi(endpoint=chosen.endpoint)
    url = f"{api.endpoint}/{'datasets/' if chosen.kind == 'dataset' else ''}{repo}"
    if chosen.dry_run:
        return Pushed(repo, url, None, None, mine.sizes)
    try:
        return _Push(api, repo, chosen).run(mine, url)
    except (httpx2.HTTPError, OSError, RuntimeError, JSONDecodeError) as error:
        # What the client raised may hold the token, and would be shown with a traceback.
        raise translated(error, repo, api.endpoint) from None


class _Push:
    """One push: the client, and where to."""

    def __init__(self, api: HfApi, repo: str, options: PushOptions) -> None:
        self.api = api
        self.options = options
        self.place: dict[str, Any] = {"repo_id": repo, "repo_type": options.kind}

    def run(self, mine: Folder, url: str) -> Pushed:
        repo, patience = self.place["repo_id"], self.options.patience
        self._make()
        first: str | None = None
        plan = Plan({}, ())
        for last in patience.attempts():
            there = self._look()
            first = first or there.head
            todo = mine.plan(there, overwrite=self.options.overwrite)
            if todo.empty:
                # A commit whose answer was lost, or nothing to do from the start.
                landed = there.head != first
                return Pushed(
                    repo, url, there.head, landed, _sizes(plan) if landed else {}, plan.remove if landed else ()
                )
            plan = todo
            operations = self._send(plan)
            try:
                return Pushed(repo, url, self._commit(operations, there.head), True, _sizes(plan), plan.remove)
            except Exception as error:
                if last or not (passes(error) or status_of(error) in CONFLICT):
                    raise
        raise ValueError("Patience.tries has to be at least 1")

    def _make(self) -> None:
        """Make the repository and the branch, unless they are there."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        options, call = self.options, self.options.patience.call
        try:
            # Asked first, because a token may write to a repository and yet not make one.
            call(lambda: self.api.repo_info(**self.place))
        except RepositoryNotFoundError:
            call(lambda: self.api.create_repo(**self.place, private=options.private, exist_ok=True))
        if options.branch == MAIN:
            return
        try:
            call(lambda: self.api.repo_info(**self.place, revision=options.branch))
        except RevisionNotFoundError:
            call(lambda: self.api.create_branch(**self.place, branch=options.branch, exist_ok=True))

    def _look(self) -> There:
        """What is on the branch now."""
        from huggingface_hub.hf_api import RepoFile

        head = self.options.patience.call(lambda: self.api.repo_info(**self.place, revision=self.options.branch)).sha
        if head is None:
            raise HubError(f"{self.place['repo_id']} has no commit to publish on")
        listed = self.api.list_repo_tree(**self.place, revision=head, recursive=True)
        files = {item.path: item for item in listed if isinstance(item, RepoFile)}
        readme = self._read(README, head) if README in files else None
        record = Record.read(self._read(RECORD, head)) if RECORD in files else None
        return There(head, files, readme, record)

    def _read(self, path: str, head: str) -> str:
        file = self.options.patience.call(lambda: self.api.hf_hub_download(**self.place, filename=path, revision=head))
        try:
            # Not read_text, which would take \r out of line ends.
            return Path(file).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise HubError(
                f"{path} in the repository is not UTF-8 text ({error.reason}); mend it there first"
            ) from error

    def _send(self, plan: Plan) -> list[CommitOperationAdd | CommitOperationDelete]:
        """Send contents, which changes nothing that a reader sees; the client is patient by itself here."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        additions = []
        for path, content in counted(plan.send.items(), "hashing", "files"):
            source = content.source if isinstance(content.source, bytes) else str(content.source)
            additions.append(CommitOperationAdd(path_in_repo=path, path_or_fileobj=source))
            # Operations are for one try each, hashes are not.
            additions[-1].upload_info.sha256 = bytes.fromhex(content.sha256)
        with refusals(self.place["repo_id"]):
            self.api.preupload_lfs_files(
                **self.place, additions=additions, revision=self.options.branch, free_memory=False
            )
        # The client would leave these out of the commit and not say so.
        ignored = [operation.path_in_repo for operation in additions if operation._should_ignore]
        if ignored:
            raise HubError(f"the repository's .gitignore keeps out {listed(ignored)}; change it there first")
        return [*additions, *(CommitOperationDelete(path) for path in plan.remove)]

    def _commit(self, operations: Sequence[CommitOperationAdd | CommitOperationDelete], head: str) -> str:
        """Commit on top of ``head`` and nothing else; return the commit's id."""
        with refusals(self.place["repo_id"]):
            done = self.api.create_commit(
                **self.place,
                operations=operations,
                commit_message=self.options.message,
                revision=self.options.branch,
                parent_commit=head,
            )
        return str(done.oid)


def _sizes(plan: Plan) -> dict[str, int]:
    return {path: content.size for path, content in plan.send.items()}
