"""Build, publish and audit RoleBench; harness tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import DataDir, with_options
from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.data.hub.push import PushOptions

app = typer.Typer(help=__doc__, no_args_is_help=True)

OnlyConfig = Annotated[list[str] | None, typer.Option("--config", help="Only this config; repeatable.")]


@app.command("build")
@with_options
def run_data_build(
    out: Path = Path("dataset_scripts/rolebench"),
    config: OnlyConfig = None,
    data_dir: DataDir = None,
) -> Result:
    """Write the release as a script-free Hub data set: Parquet and a card with configs and checksums.

    Prints Table 1 of the paper next to it, counted from what is there.

    Args:
        out: Folder to write.
    """
    from rolellm.data.rolebench.build import build
    from rolellm.data.rolebench.statistics import count_table_one

    built = build(out, config or None, data_dir=data_dir)
    sources = [item.source for item in built.configs if not item.config.embedded]
    if not sources:
        return built
    return replace(built, table_one=count_table_one(sources[0].root))


@app.command("push")
@with_options
def run_data_push(
    repo: Annotated[str, typer.Argument()],
    options: PushOptions,
    config: OnlyConfig = None,
    data_dir: DataDir = None,
    licence: Annotated[str | None, typer.Option("--license")] = None,
) -> Result:
    """Build a release and publish it as one commit: all configs with their card, for load_dataset(REPO, CONFIG).

    Args:
        repo: Dataset on the Hub, OWNER/NAME.
        licence: License; defaults to the release's own, apache-2.0; required for your own data.
    """
    import tempfile
    from contextlib import suppress

    from rolellm.core.errors import ReleaseNotFoundError
    from rolellm.data.hub.push import check_push, push_folder
    from rolellm.data.rolebench.audit import audit_release
    from rolellm.data.rolebench.build import build
    from rolellm.data.rolebench.schema import SAMPLE
    from rolellm.data.rolebench.source import find_own_manifest

    own = find_own_manifest(data_dir)
    if own and not licence:
        raise SettingsError("your own data is published under a license, which is never guessed: give --license")
    title = repo.partition("/")[2] if own else "RoleBench"
    options = replace(options, kind="dataset", message=options.message or f"Publish {title}")
    check_push(repo, options)
    faults = []
    # With nothing but a part that is not audited, such as instructions, or with the sample, there is none.
    with suppress(ReleaseNotFoundError):
        findings = audit_release(data_dir).findings if config != [SAMPLE] else ()
        faults = [(item.file, item.check, item.count, item.of) for item in findings]
    with tempfile.TemporaryDirectory(prefix="rolellm-") as folder:
        build(folder, config or None, data_dir=data_dir, home=repo, licence=licence, faults=faults)
        return push_folder(Path(folder), repo, options)


@app.command("audit")
@with_options
def run_data_audit(data_dir: DataDir = None) -> Result:
    """Look for faults in a whole or partial release: its schema, exact leaks, and baselines."""
    from rolellm.data.rolebench.audit import audit_release

    return audit_release(data_dir)


@app.command("harness")
@with_options
def run_data_harness() -> Result:
    """Print the folder of RoleBench's tasks for lm-evaluation-harness, for its --include_path."""
    from rolellm.harness.tasks import TasksFolder, get_tasks_folder

    return TasksFolder(get_tasks_folder())


@app.command("convert-chatglm")
@with_options
def run_data_convert_chatglm(
    src: Annotated[Path, typer.Argument()],
    dst: Annotated[Path, typer.Argument()],
) -> Result:
    """Turn a published ChatGLM2-6B or ChatGLM3-6B into a native GlmForCausalLM with a fast tokenizer.

    Streams shard by shard; runs none of the checkpoint's code.

    Args:
        src: The published checkpoint's folder.
        dst: New folder for the converted model.
    """
    from rolellm.models.chatglm.convert import convert_chatglm

    return convert_chatglm(src, dst)
