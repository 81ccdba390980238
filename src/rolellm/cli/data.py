"""Build, publish and audit RoleBench; harness tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import AsJson, DataDir, with_options
from rolellm.cli.output import print_json, print_result, print_table
from rolellm.core.errors import SettingsError
from rolellm.data.hub.push import Pushed, PushOptions
from rolellm.models.chatglm.convert import DType
from rolellm.models.chatglm.tokenizer import Family

if TYPE_CHECKING:
    from rolellm.making.audit import Audit

app = typer.Typer(help=__doc__, no_args_is_help=True)

OnlyConfig = Annotated[list[str] | None, typer.Option("--config", help="Only this config; repeatable.")]


@app.command("build")
@with_options
def run_data_build(
    out: Path = Path("dataset_scripts/rolebench"),
    config: OnlyConfig = None,
    data_dir: DataDir = None,
    revision: str | None = None,
    skip_bad: bool = False,
    as_json: AsJson = False,
) -> None:
    """Write the release as a script-free Hub data set: Parquet and a card with configs and checksums.

    Prints Table 1 of the paper next to it, counted from what is there.

    Args:
        out: Folder to write.
        revision: Revision of the release on the Hub.
        skip_bad: Set bad rows aside in skipped.jsonl instead of stopping.
    """
    from rolellm.data.rolebench.build import SKIPPED_FILE, build
    from rolellm.data.rolebench.statistics import count_table_one

    built = build(out, config or None, data_dir=data_dir, revision=revision, skip_bad=skip_bad)
    source = next((item.source for item in built if not item.config.embedded), None)
    table = None if source is None else count_table_one(source.root, skip_bad=True)
    if as_json:
        configs = {
            item.config.name: {
                "rows": {split.name: split.rows for split in item.splits},
                "skipped": len(item.skipped),
                "missing": item.missing,
                "fingerprint": item.source.fingerprint(item.config),
            }
            for item in built
        }
        print_json({"out": str(out), "configs": configs, "table_one": table})
        return
    rows = [(item.config.name, split.name, split.rows, len(item.skipped)) for item in built for split in item.splits]
    print_table(f"Built into {out}", ("config", "split", "rows", "set aside"), rows)
    if any(item.skipped for item in built):
        typer.echo(f"Rows set aside are in {out / SKIPPED_FILE}, each with its file, line and reason.")
    if table is not None:
        _print_table_one(table)


@app.command("push")
@with_options
def run_data_push(
    repo: Annotated[str, typer.Argument(metavar="REPO")],
    options: PushOptions,
    config: OnlyConfig = None,
    data_dir: DataDir = None,
    skip_bad: bool = False,
    licence: Annotated[str | None, typer.Option("--license")] = None,
) -> Pushed:
    """Build a release and publish it as one commit: all configs with their card, for load_dataset(REPO, CONFIG).

    Args:
        repo: Dataset on the Hub, OWNER/NAME.
        skip_bad: Set bad rows aside in skipped.jsonl, which is published too.
        licence: License; defaults to the release's own, apache-2.0; required for your own data.
    """
    import tempfile
    from contextlib import suppress

    from rolellm.core.errors import ReleaseNotFoundError
    from rolellm.data.hub.push import check_push, push_folder
    from rolellm.data.rolebench.build import build
    from rolellm.data.rolebench.schema import SAMPLE
    from rolellm.data.rolebench.source import find_own_manifest
    from rolellm.making.audit import audit_release

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
        build(folder, config or None, data_dir=data_dir, skip_bad=skip_bad, home=repo, licence=licence, faults=faults)
        return push_folder(Path(folder), repo, options)


@app.command("audit")
@with_options
def run_data_audit(data_dir: DataDir = None, html: Path | None = None, as_json: AsJson = False) -> None:
    """Look for faults in a whole or partial release: duplicates, leaks, bad references, missing baselines.

    Args:
        html: Also write the findings to this page, with examples of each.
    """
    from rolellm.making.audit import audit_release
    from rolellm.reporting.page import write_audit

    report = audit_release(data_dir)
    if html is not None:
        write_audit(html, report)
    print_result(report, _show_audit, as_json)
    if html is not None and not as_json:
        typer.echo(f"Page: {html}")


def _show_audit(report: Audit) -> None:
    rows = [
        (item.file, item.check, item.count, item.of, ", ".join(map(str, item.lines[:3]))) for item in report.findings
    ]
    print_table(f"Faults of {report.table['root']}", ("file", "fault", "count", "of", "first lines"), rows)
    _print_table_one(report.table)
    for problem in report.unread:
        typer.echo(f"not read: {problem}")


def _print_table_one(table: Mapping[str, Any]) -> None:
    print_table("Table 1", ("", "published", "here", "note"), [tuple(line.values()) for line in table["lines"]])
    for path in table["missing"]:
        typer.echo(f"missing: {path}")


@app.command("harness")
@with_options
def run_data_harness(as_json: AsJson = False) -> None:
    """Print the folder of RoleBench's tasks for lm-evaluation-harness, for its --include_path."""
    from rolellm.harness.tasks import get_tasks_folder

    folder = str(get_tasks_folder())
    if as_json:
        print_json({"include_path": folder})
    else:
        typer.echo(folder)


@app.command("convert-chatglm")
@with_options
def run_data_convert_chatglm(
    src: Annotated[Path, typer.Argument(metavar="SRC")],
    dst: Annotated[Path, typer.Argument(metavar="DST")],
    dtype: DType | None = None,
    family: Family | None = None,
    allow_differences: bool = False,
    as_json: AsJson = False,
) -> None:
    """Turn a published ChatGLM2-6B or ChatGLM3-6B into a native GlmForCausalLM with a fast tokenizer.

    Streams shard by shard; runs none of the checkpoint's code.

    Args:
        src: The published checkpoint's folder.
        dst: New folder for the converted model.
        dtype: Data type of the weights; defaults to the checkpoint's own.
        family: The model's family, if the folder does not name it.
        allow_differences: Continue if the tokenizer splits some text differently from the original.
    """
    from rolellm.models.chatglm.convert import convert_chatglm

    conversion = convert_chatglm(src, dst, dtype=dtype, family=family, allow_differences=allow_differences)
    print_result(conversion, _show_conversion, as_json)


def _show_conversion(conversion: Mapping[str, Any]) -> None:
    typer.echo(
        "{parameters:,} parameters of {family} in {dtype}, {files} files: {out}\n"
        "The tokenizer was compared with SentencePiece on {tokenizer[texts]:,} texts: "
        "{tokenizer[differing]} differ.".format_map(conversion)
    )
