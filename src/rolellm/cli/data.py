"""Build, publish and count the RoleBench release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, DataDir, with_options
from rolellm.cli.output import print_json, print_table
from rolellm.hub.push import PushOptions

app = typer.Typer(help=__doc__, no_args_is_help=True)

OnlyConfig = Annotated[list[str] | None, typer.Option("--config", help="Only this config; repeatable.")]


@app.command()
@with_options
def build(
    out: Path = Path("dataset_scripts/rolebench"),
    config: OnlyConfig = None,
    data_dir: DataDir = None,
    revision: str | None = None,
    skip_bad: bool = False,
    as_json: AsJson = False,
) -> None:
    """Write the release as a script-free Hub data set: Parquet and a card with configs and checksums.

    Args:
        out: Folder to write.
        revision: Revision of the release on the Hub.
        skip_bad: Set bad rows aside in skipped.jsonl instead of stopping.
    """
    from rolellm.rolebench.build import SKIPPED_FILE, build

    built = build(out, config or None, data_dir=data_dir, revision=revision, skip_bad=skip_bad)
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
        print_json({"out": str(out), "configs": configs})
        return
    rows = [(item.config.name, split.name, split.rows, len(item.skipped)) for item in built for split in item.splits]
    print_table(f"Built into {out}", ("config", "split", "rows", "set aside"), rows)
    if any(item.skipped for item in built):
        typer.echo(f"Rows set aside are in {out / SKIPPED_FILE}, each with its file, line and reason.")


@app.command()
@with_options
def push(
    repo: Annotated[str, typer.Argument(metavar="REPO")],
    options: PushOptions,
    config: OnlyConfig = None,
    data_dir: DataDir = None,
    skip_bad: bool = False,
    licence: Annotated[str | None, typer.Option("--license")] = None,
    as_json: AsJson = False,
) -> None:
    """Build a release and publish it as one commit: all configs with their card, for load_dataset(REPO, CONFIG).

    Args:
        repo: Dataset on the Hub, OWNER/NAME.
        skip_bad: Set bad rows aside in skipped.jsonl, which is published too.
        licence: License; defaults to the release's own, apache-2.0; required for your own data.
    """
    import tempfile
    from contextlib import suppress

    from rolellm.cli.push import show
    from rolellm.construct.audit import audit
    from rolellm.core.errors import ReleaseNotFoundError, SettingsError
    from rolellm.hub.push import check_push, push_folder
    from rolellm.rolebench.build import build
    from rolellm.rolebench.schema import SAMPLE
    from rolellm.rolebench.source import own_manifest

    own = own_manifest(data_dir)
    if own and not licence:
        raise SettingsError("your own data is published under a license, which is never guessed: give --license")
    title = repo.partition("/")[2] if own else "RoleBench"
    options = replace(options, kind="dataset", message=options.message or f"Publish {title}")
    check_push(repo, options)
    faults = []
    # With nothing but a part that is not audited, such as instructions, or with the sample, there is none.
    with suppress(ReleaseNotFoundError):
        found = audit(data_dir).findings if config != [SAMPLE] else ()
        faults = [(item.file, item.check, item.count, item.of) for item in found]
    with tempfile.TemporaryDirectory(prefix="rolellm-") as folder:
        build(folder, config or None, data_dir=data_dir, skip_bad=skip_bad, home=repo, licence=licence, faults=faults)
        show(push_folder(Path(folder), repo, options), as_json=as_json)


@app.command()
def stats(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Print Table 1 of the paper for the available part of the release, next to the published figures."""
    from rolellm.rolebench.statistics import table_one

    table = table_one(data_dir)
    if as_json:
        print_json(table.to_dict())
        return
    rows = [(line.name, line.published, line.here, line.note) for line in table.lines]
    print_table(f"RoleBench in {table.root}", ("", "published", "here", "note"), rows)
    for path in table.missing:
        typer.echo(f"missing: {path}")


@app.command()
@with_options
def audit(data_dir: DataDir = None, html: Path | None = None, as_json: AsJson = False) -> None:
    """Look for faults in a whole or partial release: duplicates, leaks, bad references, missing baselines.

    Args:
        html: Also write the findings to this page, with examples of each.
    """
    from rolellm.construct.audit import audit
    from rolellm.report.audit_page import write_audit

    found = audit(data_dir)
    if html is not None:
        write_audit(html, found)
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        (item.file, item.check, item.count, item.of, ", ".join(map(str, item.lines[:3]))) for item in found.findings
    ]
    print_table(f"Faults of {found.table.root}", ("file", "fault", "count", "of", "first lines"), rows)
    table = [(line.name, line.published, line.here, line.note) for line in found.table.lines]
    print_table("Table 1", ("", "published", "here", "note"), table)
    for problem in found.unread:
        typer.echo(f"not read: {problem}")
    if html is not None:
        typer.echo(f"Page: {html}")
