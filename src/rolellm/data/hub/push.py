"""A folder becomes one commit on the Hub, or none at all: readers find the revision before it, or all of this one.

The client sends only what is new, in one commit on the revision that was looked at; after an error, the same command
again goes on. (Its ``upload_folder`` makes several commits of large folders.)

In a repository's README, our card lies between two comments, and what a person wrote around it is kept. In the front
matter, our keys replace those of the same name, and what somebody added to a list of names, such as tags, stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rolellm.core.errors import DataError, HubError, HubLoginError, HubUnreachableError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_json
from rolellm.core.result import Result
from rolellm.core.scrub import hide_hub_token
from rolellm.core.settings import Advanced, Field, settings
from rolellm.core.table import Table

if TYPE_CHECKING:
    from huggingface_hub import HfApi
README = "README.md"
RECORD = ".rolellm.json"
"""Kept in each repository: which of its files are ours."""
MAIN = "main"


def translate_error(error: Exception, repo: str, endpoint: str) -> HubError:
    """An error of the Hub's client as one of ours, with the way out.

    Args:
        error: What the client raised.
        repo: The repository that is published to.
        endpoint: The Hub's address.
    """
    status = getattr(getattr(error, "response", None), "status_code", None)
    message = getattr(error, "server_message", None) or str(error)
    text = hide_hub_token(message).strip()
    reason = text.partition("\n")[0].rstrip(".") or type(error).__name__
    if isinstance(error, ValueError):
        # So the client refuses bad metadata.
        return HubError(f"{repo} could not be published: {text}")
    if status == 401:
        return HubLoginError(
            f"{endpoint} rejected the token ({reason}); log in again with `hf auth login`, or set HF_TOKEN"
        )
    if status == 403:
        return HubLoginError(
            f"this token may not write to {repo} ({reason}); use a token with write access, or a repository of your own"
        )
    if status in (409, 412):
        return HubError(f"{repo} changed while this was published ({reason}); nothing was published, run it again")
    if status is None or status >= 500:
        return HubUnreachableError(
            f"{endpoint} failed ({reason}). What was on {repo} before is unchanged unless the answer was lost; run the "
            "same command again to continue the upload"
        )
    return HubError(f"{repo} could not be published: {status}: {reason}")


@settings
class PushOptions:
    """Options for publishing.

    Attributes:
        private: Make a newly created repository private.
        branch: Branch to push to; created if missing.
        message: Commit title.
        dry_run: List what would be sent; send nothing.
        kind: What the repository is.
        endpoint: Another Hub than the one that HF_ENDPOINT names.
    """

    private: bool = Field(default=True, json_schema_extra={"flag": "private/--public"})
    branch: Advanced[str] = Field(default=MAIN, json_schema_extra={"flag": "revision"})
    message: str | None = Field(default=None, json_schema_extra={"cli": False})
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
        sent: Bytes by path of all that the folder holds; the client sends what is new.
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

    ``README.md`` in the folder is taken as our card and merged into the one on the Hub, see `merge_card`.
    Files of an earlier push that the folder does not have any more are removed; files of others stay.

    Args:
        folder: What to publish, with everything under it.
        repo: ``OWNER/NAME``; made where it is not there.
        options: How.

    Raises:
        SettingsError: When the name of the repository is none.
        HubLoginError: Without a token, or with one that may not write there.
        HubUnreachableError: When the Hub cannot be reached.
        HubError: When it refuses, or its README cannot be merged with.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    chosen = options or PushOptions()
    check_push(repo, chosen)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    if not files:
        raise HubError(f"{folder} contains nothing to publish")
    api = HfApi(endpoint=chosen.endpoint)
    prefix = "datasets/" if chosen.kind == "dataset" else ""
    url = f"{api.endpoint}/{prefix}{repo}"
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if chosen.dry_run:
        return Pushed(repo, url, None, None, sizes)
    # httpx's own, in the version that the client uses.
    http_error = cast(type[Exception], HfHubHTTPError.__bases__[0])
    try:
        with tempfile.TemporaryDirectory(prefix="rolellm-") as scratch:
            head, revision, removed = _commit(api, files, repo, chosen, Path(scratch))
    except (http_error, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, HubError):
            raise
        # What the client raised may hold the token, and would be shown with a traceback.
        raise translate_error(error, repo, api.endpoint) from None
    if revision == head:
        return Pushed(repo, url, head, False, {})
    return Pushed(repo, url, revision, True, sizes, removed)


def _commit(
    api: HfApi, files: dict[str, Path], repo: str, options: PushOptions, scratch: Path
) -> tuple[str, str, tuple[str, ...]]:
    """Commit files; return the branch's commit before, the one after, and the paths that were removed."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    target: dict[str, Any] = {"repo_id": repo, "repo_type": options.kind}
    api.create_repo(**target, private=options.private, exist_ok=True)
    if options.branch != MAIN:
        api.create_branch(**target, branch=options.branch, exist_ok=True)
    head = str(api.repo_info(**target, revision=options.branch).sha)
    present = api.list_repo_files(**target, revision=head)

    def download(name: str) -> Path | None:
        if name not in present:
            return None
        return Path(api.hf_hub_download(**target, filename=name, revision=head))

    record = download(RECORD)
    earlier = _read_record(record) if record else set()
    if README in files:
        merged = merge_card(files[README], download(README))
        files[README] = scratch / README
        # newline: the card keeps its line ends.
        files[README].write_text(merged, encoding="utf-8", newline="")
    write_json(scratch / RECORD, {"files": sorted(files)})
    files[RECORD] = scratch / RECORD
    removed = tuple(sorted(earlier.intersection(present).difference(files)))
    additions = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
    deletions = map(CommitOperationDelete, removed)
    commit = api.create_commit(
        **target,
        operations=[*additions, *deletions],
        commit_message=options.message or "Publish with rolellm",
        revision=options.branch,
        parent_commit=head,
    )
    return head, str(commit.oid), removed


def _read_record(path: Path) -> set[str]:
    try:
        return set(read_json(path)["files"])
    except (DataError, KeyError, TypeError) as error:
        raise HubError(f"{RECORD} in the repository is not what rolellm wrote; delete it there first") from error


BEGIN = "<!-- rolellm:begin – written by rolellm at each push; what stands outside these two comments is kept -->"
END = "<!-- rolellm:end -->"


def merge_card(card: Path, current: Path | None) -> str:
    """The README to publish.

    Args:
        card: Our card.
        current: The README that is there, if any.

    Raises:
        HubError: When the README there has front matter that is not a YAML mapping, or one of our two comments without
            the other.
    """
    from huggingface_hub import RepoCard

    ours = RepoCard(card.read_text(encoding="utf-8"))
    text = ours.text.strip().replace("<!--", "&lt;!--")
    block = f"{BEGIN}\n\n{text}\n\n{END}"
    if current is None:
        ours.text = f"\n{block}\n"
        return str(ours)
    try:
        # Not read_text, which would take \r out of line ends.
        theirs = RepoCard(current.read_bytes().decode("utf-8"), ignore_metadata_errors=True)
    except Exception as error:
        # Neither PyYAML's errors nor the decoder's are ValueErrors of the client.
        raise HubError(f"the README.md there cannot be read ({error}); fix it there first") from error
    data = dict(vars(theirs.data))
    for key, value in vars(ours.data).items():
        data[key] = _merge_value(value, data.get(key))
    ours.data = type(ours.data)(**data)
    ours.text = _put_block(theirs.text, block)
    return str(ours)


def _put_block(body: str, block: str) -> str:
    """Put our part into a text: in the place of the earlier one, else at the end."""
    before, _, remainder = body.partition(BEGIN)
    _, _, after = remainder.partition(END)
    counts = body.count(BEGIN), body.count(END)
    if counts == (1, 1) and body.index(BEGIN) < body.index(END):
        return before + block + after
    if BEGIN in body or END in body:
        raise HubError(
            "the README.md there does not have exactly one `rolellm:begin` comment with a `rolellm:end` after it, so "
            "your part and ours cannot be told apart; restore the pair, or remove both"
        )
    return f"{body.rstrip()}\n\n{block}\n"


def _merge_value(our_value: Any, hub_value: Any) -> Any:
    """Return our value; of a list of names, with those that somebody added to it."""
    is_names = isinstance(our_value, list) and isinstance(hub_value, list)
    if not is_names or any(isinstance(item, dict) for item in our_value):
        return our_value
    return our_value + [item for item in hub_value if item not in our_value]
