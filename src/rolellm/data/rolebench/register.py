"""Makes ``load_dataset("rolebench", …)`` work once ``rolellm`` is imported.

``datasets`` 5 runs no loading scripts, and a registered packaged module globs the current directory. So the bare name
is mapped, where ``datasets`` looks a name up, to a script-free folder that the library builds into its cache (our
choice; see ``dev/decisions.md``). Every other name, and every path, goes through untouched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from rolellm.core.errors import SettingsError

NAME = "rolebench"
_MARK = "_rolellm_wraps"
# As many rows as a row group has.
_BATCH = 1_000


def register() -> None:
    """Arrange for the name to be known to ``datasets``, now or when it is imported; twice is the same as once."""
    # `datasets` itself and `datasets.inspect` hold their own references to the functions.
    for module in ("datasets", "datasets.load", "datasets.inspect"):
        wrapt.register_post_import_hook(_hook, module)


def load_rolebench(
    config: str | None = None,
    split: str | None = None,
    *,
    data_dir: str | Path | None = None,
    **options: Any,
) -> Any:
    """Load RoleBench as ``load_dataset("rolebench", config, split=split)`` does, for those who like a plain function.

    Args:
        config: One of :data:`rolellm.data.rolebench.schema.CONFIGS`; by default the only one of your own release, else
            ``instruction-generalization-eng``.
        split: ``train``, ``test``, or a slice such as ``test[:10]``; all splits when left out.
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub at the pinned revision.
        options: Passed on to ``datasets.load_dataset`` (``streaming``, ``num_proc``, ``cache_dir``, …).

    Returns:
        A ``datasets.Dataset``, or a ``DatasetDict`` by split when no split is named.

    Raises:
        SettingsError: For an unknown config or split; names those that are there.
        ReleaseNotFoundError: When the release is in none of the three places.
        DataError: At a row that is not as published; names file and line.
    """
    import datasets

    register()
    try:
        return datasets.load_dataset(NAME, config, split=split, data_dir=data_dir, **options)
    except ValueError as error:
        # `datasets` has no error of its own for this.
        if not str(error).startswith(("Unknown split", "Bad split")):
            raise
        raise SettingsError(
            f"{config or NAME}: {error} A missing split may be a file that the release here lacks."
        ) from error


def _hook(module: ModuleType) -> None:
    _wrap(module, "load_dataset_builder", _load_builder)
    _wrap(module, "dataset_module_factory", _load_module)


def _wrap(module: ModuleType, name: str, handler: Callable[..., Any]) -> None:
    original = getattr(module, name, None)
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == NAME:
            return handler(original, *args, **kwargs)
        return original(path, *args, **kwargs)

    setattr(wrapped, _MARK, True)
    setattr(module, name, wrapped)


def _load_builder(original: Callable[..., Any], name: str | None = None, **kwargs: Any) -> Any:
    """Stands for ``load_dataset_builder("rolebench", name, …)``."""
    from rolellm.data.rolebench.build import get_built_folder
    from rolellm.data.rolebench.schema import get_config
    from rolellm.data.rolebench.source import find_only_config

    if kwargs.pop("data_files", None) is not None:
        raise ValueError('load_dataset("rolebench") takes data_dir=RELEASE, not data_files')
    data_dir = kwargs.pop("data_dir", None)
    config = get_config(name or find_only_config(data_dir))
    revision = kwargs.pop("revision", None)
    folder = get_built_folder(config, data_dir, revision=revision, token=kwargs.get("token"))
    # `datasets` keeps what it makes of a folder by names and sizes: the content's hash, which is in this name, keeps it
    # from giving old rows for new ones of the same sizes.
    builder = original(str(folder), config.name, description=folder.parent.name, **kwargs)
    builder._generate_tables = functools.partial(_read_files, builder)
    return builder


def _read_files(
    builder: Any, files: Iterable[Any], row_groups_list: Iterable[Any] | None = None
) -> Iterator[tuple[str, Any]]:
    """Read Parquet as ``datasets`` does, but by the paths of files.

    A thread of Arrow's that frees what it read from a file of Python's while the interpreter exits aborts it
    (apache/arrow#45214).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    config = builder.config
    filters = config.filters
    if isinstance(filters, list):
        filters = pq.filters_to_expression(filters)
    # `datasets` 4.0 has iterables of paths.
    paths = itertools.chain.from_iterable([file] if isinstance(file, str) else file for file in files)
    # Without row groups, all of each file.
    for path, row_groups in zip(paths, row_groups_list or itertools.repeat(None), strict=False):
        with pq.ParquetFile(path) as parquet:
            batches = parquet.iter_batches(config.batch_size or _BATCH, row_groups and list(row_groups))
            for number, batch in enumerate(batches):
                table = pa.Table.from_batches([batch])
                if filters is not None:
                    table = table.filter(filters)
                if config.columns is not None:
                    table = table.select(config.columns)
                yield f"{path}_{number}", builder._cast_table(table)


def _load_module(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Stands for ``dataset_module_factory("rolebench")``, which lists configs: no release is needed for that."""
    from datasets import BuilderConfig

    from rolellm.data.rolebench.build import get_built_folder
    from rolellm.data.rolebench.schema import CONFIGS, DEFAULT_CONFIG, SAMPLE, get_config

    module = original(str(get_built_folder(get_config(SAMPLE))))
    parameters = module.builder_configs_parameters
    parameters.builder_configs = [BuilderConfig(name=name) for name in CONFIGS]
    parameters.default_config_name = DEFAULT_CONFIG
    return module
