"""What RoleBench is made of: its configs, their splits and the files each comes from.

The layout is that of ``ZenMoore/RoleBench`` on the Hub at :data:`REVISION` (see ``docs/rolebench.md``).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolellm.core.errors import SettingsError
from rolellm.core.records import Language, Subset

if TYPE_CHECKING:
    import pyarrow as pa

REPO_ID = "ZenMoore/RoleBench"
REVISION = "a57ed54f"
"""The release this library was written against; the Hub resolves the short form."""

DEFAULT_CONFIG = "instruction-generalization-eng"
SAMPLE = "sample"
ANONYMOUS = "-anonymous"
"""How the name of a config of fame-free twins ends; see `rolellm.data.rolebench.twins`."""
BUILD_FORMAT = 1
"""Raised when the same release files would build into other rows, so that old caches are not used."""

MANIFEST = "manifest.json"
"""What `rolellm role release` writes next to a release, to say how it was made; the published one has none."""
KIND = "rolellm release"
"""The ``kind`` in that file."""
FOLDERS: dict[Language, str] = {"en": "eng", "zh": "zh"}
"""The suffix that the release gives each language's folders."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One data file of the release, and where its rows go.

    Attributes:
        path: Relative to the release's root.
        split: ``train`` or ``test``.
        subset: ``general`` or ``role_specific``.
        language: ``en`` or ``zh``.
        baseline: The file with the released RoleGPT replies to these questions.
    """

    path: str
    split: str
    subset: Subset
    language: Language
    baseline: str


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of the data set.

    Attributes:
        name: As passed to ``load_dataset``.
        files: The data files, in the order of their rows; none for the tables ``roles`` and ``instructions``.
        languages: The languages it covers.
        held_out: What a ``-strict`` config takes out of train: ``question``, ``role``; ``None`` keeps rows as released.
        is_dialogue: Whether it stands for the roles' descriptions and dialogue in these languages, in place of rows.
    """

    name: str
    files: tuple[SourceFile, ...]
    languages: tuple[Language, ...]
    held_out: str | None = None
    is_dialogue: bool = False

    @property
    def anonymous(self) -> bool:
        """True if its rows are the fame-free twins of the config without ``-anonymous`` in its name."""
        return self.name.endswith(ANONYMOUS)

    @property
    def embedded(self) -> bool:
        """True if the package contains its files."""
        return self.name.removesuffix(ANONYMOUS) == SAMPLE

    def list_side_files(self) -> list[str]:
        """Glob patterns of the files that columns are joined from: descriptions and general instructions."""
        patterns = []
        for folder in map(FOLDERS.__getitem__, self.languages):
            if self.is_dialogue:
                patterns += [f"profiles-{folder}/desc.json", f"profiles-{folder}/profiles-{folder}-*.jsonl"]
                continue
            patterns += [f"profiles-{folder}/desc.json", f"instructions-{folder}/instructions-general*.jsonl"]
            if self.name == "roles":
                patterns += [f"profiles-{folder}/scripts.json"]
            if self.name == "instructions":
                patterns += [f"instructions-{folder}/role-specific-*.jsonl"]
        return patterns

    def patterns(self) -> list[str]:
        """Glob patterns of every release file that this config reads, and of no other."""
        data = [path for file in self.files for path in (file.path, file.baseline)]
        return sorted({*data, *self.list_side_files()})


def _list_files(language: Language, folder: str) -> tuple[SourceFile, ...]:
    subsets: tuple[Subset, ...] = ("general", "role_specific")
    return tuple(
        SourceFile(
            f"{folder}/{subset}/{split}.jsonl", split, subset, language, f"{folder}/{subset}/rolegpt_baseline.jsonl"
        )
        for split in ("train", "test")
        for subset in subsets
    )


_IG_ENG = _list_files("en", "rolebench-eng/instruction-generalization")
_RG_ENG = _list_files("en", "rolebench-eng/role-generalization")
_IG_ZH = _list_files("zh", "rolebench-zh")
_RELEASED: tuple[tuple[str, tuple[SourceFile, ...], Language, str], ...] = (
    ("instruction-generalization-eng", _IG_ENG, "en", "question"),
    ("role-generalization-eng", _RG_ENG, "en", "role"),
    ("instruction-generalization-zh", _IG_ZH, "zh", "question"),
)
CONFIGS: dict[str, Config] = {
    config.name: config
    for config in (
        *(Config(name, files, (language,)) for name, files, language, _ in _RELEASED),
        *(Config(f"{name}-strict", files, (language,), held_out) for name, files, language, held_out in _RELEASED),
        *(Config(name + ANONYMOUS, files, (language,)) for name, files, language, _ in _RELEASED),
        Config("roles", (), ("en", "zh")),
        Config("instructions", (), ("en", "zh")),
        Config(SAMPLE, _IG_ENG + _IG_ZH, ("en", "zh")),
        Config(SAMPLE + ANONYMOUS, _IG_ENG + _IG_ZH, ("en", "zh")),
    )
}


def get_config(name: str | None) -> Config:
    """Look a config up by name; ``None`` is the default one.

    Raises:
        SettingsError: For a name that is not a config; names the nearest ones and lists all.
    """
    name = name or DEFAULT_CONFIG
    if name in CONFIGS:
        return CONFIGS[name]
    near = difflib.get_close_matches(name, CONFIGS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingsError(f"rolebench has no config {name!r}.{hint} Configs: {', '.join(CONFIGS)}")


def get_schema(config: Config) -> pa.Schema:
    """The Arrow schema of a config's rows: texts, and lists of texts."""
    import pyarrow as pa

    names: tuple[str, ...]
    if config.name == "roles":
        names = ("role", "language", "description", "catchphrases", "script")
    elif config.name == "instructions":
        names = ("id", "language", "subset", "role", "instruction", "target", "type", "confidence")
    else:
        about = ("raw_reference", "rolegpt", "role_description")
        names = ("id", "role", "language", "subset", "question", "references", "reference_types", *about)
    lists = {"references", "reference_types", "catchphrases"}
    return pa.schema([(name, pa.list_(pa.string()) if name in lists else pa.string()) for name in names])
