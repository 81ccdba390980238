"""What RoleBench is made of: its configs, their splits and the files each comes from.

The layout is that of ``ZenMoore/RoleBench`` on the Hub at :data:`REVISION` (see ``docs/rolebench.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rolellm.core.errors import SettingsError
from rolellm.core.records import Language, Subset
from rolellm.core.settings import describe_alternatives

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
        for language in self.languages:
            folder = FOLDERS[language]
            patterns.append(f"profiles-{folder}/desc.json")
            if self.is_dialogue:
                patterns.append(f"profiles-{folder}/profiles-{folder}-*.jsonl")
                continue
            patterns.append(f"instructions-{folder}/instructions-general*.jsonl")
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
    files = []
    for split in ("train", "test"):
        for subset in subsets:
            home = f"{folder}/{subset}"
            files.append(SourceFile(f"{home}/{split}.jsonl", split, subset, language, f"{home}/rolegpt_baseline.jsonl"))
    return tuple(files)


_IG_ENG = _list_files("en", "rolebench-eng/instruction-generalization")
_RG_ENG = _list_files("en", "rolebench-eng/role-generalization")
_IG_ZH = _list_files("zh", "rolebench-zh")
_LANGUAGES: tuple[Language, ...] = ("en", "zh")


def _list_configs() -> dict[str, Config]:
    """List the configs: as released, with what is held out, with other names; the tables; the sample."""
    released = (
        Config("instruction-generalization-eng", _IG_ENG, ("en",)),
        Config("role-generalization-eng", _RG_ENG, ("en",)),
        Config("instruction-generalization-zh", _IG_ZH, ("zh",)),
    )
    sample = Config(SAMPLE, _IG_ENG + _IG_ZH, _LANGUAGES)
    configs = [*released]
    for config in released:
        held_out = "role" if config.files is _RG_ENG else "question"
        configs.append(replace(config, name=f"{config.name}-strict", held_out=held_out))
    configs += [replace(config, name=config.name + ANONYMOUS) for config in released]
    configs += [Config(name, (), _LANGUAGES) for name in ("roles", "instructions")]
    configs += [sample, replace(sample, name=SAMPLE + ANONYMOUS)]
    return {config.name: config for config in configs}


CONFIGS: dict[str, Config] = _list_configs()


def get_config(name: str | None) -> Config:
    """Look a config up by name; ``None`` is the default one.

    Raises:
        SettingsError: For a name that is not a config; names the nearest one, or all.
    """
    name = name or DEFAULT_CONFIG
    if name in CONFIGS:
        return CONFIGS[name]
    raise SettingsError(f"rolebench has no config {name!r}{describe_alternatives(name, CONFIGS)}")


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
    types = dict.fromkeys(names, pa.string())
    for name in {"references", "reference_types", "catchphrases"}.intersection(names):
        types[name] = pa.list_(pa.string())
    return pa.schema(types)
