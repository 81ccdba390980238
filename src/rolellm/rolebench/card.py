"""The data set card: front matter that ``datasets`` reads (``configs:``, features, sizes), and prose for people."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.rolebench.columns import schema_of
from rolellm.rolebench.schema import DEFAULT_CONFIG, REPO_ID

if TYPE_CHECKING:
    from rolellm.rolebench.build import BuiltConfig

LICENCE = "apache-2.0"
"""Of the release, and of the embedded sample."""


def write_card(
    folder: Path, built: Sequence[BuiltConfig], *, home: str = "path/to/this/folder", licence: str = LICENCE
) -> Path:
    """Write ``README.md`` for the configs that were built into ``folder``.

    Args:
        folder: Where they are.
        built: What was built.
        home: What ``load_dataset`` will be given: the repository, or the folder.
        licence: What this form of the data is under.

    Returns:
        The card's path. The first config (or the library's default one, when it is there) becomes the default.
    """
    card = folder / "README.md"
    # newline: the card's bytes are the same on every system.
    card.write_text(render_card(folder, built, home, licence), encoding="utf-8", newline="\n")
    return card


def render_card(folder: Path, built: Sequence[BuiltConfig], home: str, licence: str) -> str:
    """The card's text: YAML front matter, then Markdown; see `write_card`."""
    from jinja2 import Environment, StrictUndefined

    from rolellm.rolebench.build import file_checksums

    items = [
        {
            "config": item.config,
            "splits": item.splits,
            "source": item.source,
            "missing": item.missing,
            "skipped": item.skipped,
            "fingerprint": item.source.fingerprint(item.config),
            "sources": item.source.checksums(item.config),
            "outputs": file_checksums(folder, item),
        }
        for item in built
    ]
    text = resources.files("rolellm.rolebench").joinpath("card.md.jinja").read_text(encoding="utf-8")
    template = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False).from_string(text)
    first = built[0].config.name if built else DEFAULT_CONFIG
    own = None if licence == LICENCE else licence
    body = template.render(built=items, repo=REPO_ID, first=first, example=home, own_licence=own)
    return f"---\n{front_matter(built, licence)}\n---\n\n{body}"


def front_matter(built: Sequence[BuiltConfig], licence: str = LICENCE) -> str:
    """The card's YAML: licence, languages, ``configs:`` and ``dataset_info`` as ``datasets`` writes them itself."""
    from datasets import DatasetInfo, Features, SplitDict, SplitInfo
    from datasets.info import DatasetInfosDict
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCardData

    names = [item.config.name for item in built]
    default = DEFAULT_CONFIG if DEFAULT_CONFIG in names else names[0]
    data = DatasetCardData(
        language=sorted({language for item in built for language in item.config.languages}),
        license=licence,
        task_categories=["text-generation"],
        pretty_name="RoleBench",
        tags=["role-playing", "benchmark"],
        source_datasets=[REPO_ID] if any(item.source.origin != "sample" for item in built) else ["original"],
    )
    configs: dict[str, dict[str, Any]] = {}
    infos = {}
    for item in built:
        name = item.config.name
        configs[name] = {"data_files": [{"split": split.name, "path": split.files} for split in item.splits]}
        if name == default:
            configs[name]["default"] = True
        sizes = SplitDict()
        for split in item.splits:
            sizes.add(SplitInfo(split.name, num_bytes=split.size, num_examples=split.rows))
        infos[name] = DatasetInfo(features=Features.from_arrow_schema(schema_of(item.config)), splits=sizes)
    MetadataConfigs(configs).to_dataset_card_data(data)
    DatasetInfosDict(infos).to_dataset_card_data(data)
    return str(data.to_yaml(line_break="\n"))
