"""A folder becomes one commit on the Hub, or none at all: readers find the revision before it, or all of this one.

Whatever fails for a moment is tried again, and each try begins with a look at what is there: so a commit that landed
although its answer was lost is seen for what it is, and one by somebody else in between is merged with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rolellm.errors import HubError, HubLoginError, HubUnreachableError, RecipeError
from rolellm.hub.failures import CONFLICT, Patience, passes, refusals, status_of, translated
from rolellm.hub.plan import README, RECORD, Folder, Plan, Record, There
from rolellm.progress import counted

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

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
        RecipeError: When it is not ``OWNER/NAME`` in the characters that the Hub takes.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not in __all__

    owner, slash, name = repo.partition("/")
    if not (owner and slash and name):
        raise RecipeError(f"{repo!r} is not a repository; write OWNER/NAME, such as ada/role-llama")
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise RecipeError(f"{repo!r} is not a repository: {error}") from error


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
        RecipeError: When the name of the repository is none.
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
            raise HubError(f"the repository's .gitignore keeps out {', '.join(ignored)}; change it there first")
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
