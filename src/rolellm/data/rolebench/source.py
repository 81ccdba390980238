"""Where the release comes from: a folder that is named, ``$ROLEBENCH_DIR``, or the Hub at a pinned revision."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rolellm.core.errors import ReleaseNotFoundError, RoleLLMWarning, SettingsError
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_json
from rolellm.core.scrub import hide_hub_token
from rolellm.data.rolebench.schema import BUILD_FORMAT, CONFIGS, KIND, MANIFEST, REPO_ID, REVISION, SAMPLE, Config
from rolellm.data.rolebench.twins import FILE as NAMES

ENVIRONMENT = "ROLEBENCH_DIR"


class MissingFilesWarning(RoleLLMWarning):
    """A part of the release is not there; what is there was used."""


@dataclass(frozen=True, slots=True)
class Source:
    """A local folder in the release's layout, and a name for where it came from.

    Attributes:
        root: The folder.
        origin: ``sample``, ``local`` or the Hub's ``REPO@revision``; goes into cards and fingerprints' wording.
    """

    root: Path
    origin: str

    def files(self, config: Config) -> list[Path]:
        """The release files that this config reads and that are here, sorted."""
        paths = {path for pattern in config.patterns() for path in self.root.glob(pattern)}
        return sorted(path for path in paths if path.is_file())

    def missing(self, config: Config) -> list[str]:
        """List the files of this config that are missing, as paths or patterns relative to the root.

        Of a release of one's own, only what its manifest names can be missing.
        """
        missing = [pattern for pattern in config.patterns() if not any(self.root.glob(pattern))]
        own = find_own_manifest(self.root)
        if own is None:
            return missing
        return [pattern for pattern in missing if fnmatch.filter(own.get("sha256", ()), pattern)]

    def compute_checksums(self, config: Config) -> dict[str, str]:
        """SHA-256 in hex by relative path, for each file that this config reads."""
        return {path.relative_to(self.root).as_posix(): hash_file(path) for path in self.files(config)}

    def fingerprint(self, config: Config) -> str:
        """A content hash of the config's rows: the same files give the same value on any machine."""
        names = {"names": hash_file(NAMES)} if config.anonymous else {}
        return hash_json(
            {"format": BUILD_FORMAT, "config": config.name, "files": self.compute_checksums(config), **names}
        )


def sample_folder() -> Path:
    """The embedded sample, in the release's own layout."""
    return Path(str(resources.files("rolellm.data.rolebench"))) / "sample"


def find_own_manifest(data_dir: str | Path | None = None) -> dict[str, Any] | None:
    """The manifest of a release that ``rolellm role release`` wrote, found as in `locate`; ``None`` for any other."""
    named = data_dir
    if data_dir is None:
        named = os.environ.get(ENVIRONMENT)
    if not named:
        return None
    path = Path(named).expanduser() / MANIFEST
    if not path.is_file():
        return None
    manifest = read_json(path)
    return manifest if manifest.get("kind") == KIND else None


def find_only_config(data_dir: str | Path | None = None) -> str | None:
    """The config of a release of one's own that has a single one, found as in `locate`; ``None`` for any other."""
    configs = (find_own_manifest(data_dir) or {}).get("configs", ())
    return configs[0] if len(configs) == 1 else None


def resolve_config(config: str | None, data_dir: str | Path | None = None) -> str:
    """A config's name; where none is given, the only one of the release.

    Raises:
        SettingsError: When the release does not have exactly one.
    """
    if name := config or find_only_config(data_dir):
        return name
    raise SettingsError(f"--config is missing (config= in Python); name one of {', '.join(CONFIGS)}")


def locate(
    config: Config,
    data_dir: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> Source:
    """Find the release files of a config: ``data_dir``, then ``$ROLEBENCH_DIR``, then the Hub.

    Args:
        config: Only its files are fetched when they come from the Hub.
        data_dir: A folder in the release's layout.
        revision: Another revision of the Hub repository than the pinned one.
        token: For the Hub, as ``huggingface_hub`` takes it.

    Raises:
        ReleaseNotFoundError: When there is no release, or a named folder is not one; names all places and the way out.
    """
    if data_dir is None and config.embedded:
        return Source(sample_folder(), "sample")
    named = data_dir
    if data_dir is None:
        named = os.environ.get(ENVIRONMENT)
    if named:
        setting = "data_dir" if data_dir is not None else f"${ENVIRONMENT}"
        source = Source(_release_root(Path(named).expanduser(), setting), "local")
    else:
        source = _download(config, revision or REVISION, token)
    needed = [file.path for file in config.files] or config.patterns()
    if not any(any(source.root.glob(path)) for path in needed):
        raise ReleaseNotFoundError(
            f"nothing here for config {config.name!r}; expected at least one of: {', '.join(needed)}", path=source.root
        )
    return source


def _release_root(folder: Path, setting: str) -> Path:
    if not folder.is_dir():
        raise ReleaseNotFoundError(f"{setting} is {folder}, which is not a folder. {_PLACES}")
    if any(folder.glob("rolebench-*")) or any(folder.glob("instructions-*")) or any(folder.glob("profiles-*")):
        return folder
    inner = next((path.parent for path in sorted(folder.glob("*/rolebench-*"))), None)
    hint = f" Did you mean {inner}?" if inner else ""
    raise ReleaseNotFoundError(
        f"{setting} is {folder}, which does not contain rolebench-eng, rolebench-zh, …{hint} {_PLACES}"
    )


def _download(config: Config, revision: str, token: str | bool | None) -> Source:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        folder = snapshot_download(
            REPO_ID, repo_type="dataset", revision=revision, allow_patterns=config.patterns(), token=token
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        first_line = hide_hub_token(error, token).strip().partition("\n")[0]
        reason = first_line or type(error).__name__
        raise ReleaseNotFoundError(
            f"the release could not be fetched from the Hub ({REPO_ID} at {revision}: {reason}). {_PLACES}"
        ) from None
    return Source(Path(folder), f"{REPO_ID}@{revision}")


_PLACES = (
    f"The release is looked for at data_dir=…, then ${ENVIRONMENT}, then {REPO_ID} on the Hub. "
    f'Without any of them, the embedded sample works: load_dataset("rolebench", "{SAMPLE}")'
)
