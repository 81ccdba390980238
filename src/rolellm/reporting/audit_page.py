"""The faults of a release as one HTML file: a table of all of them, examples of each, and Table 1."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from rolellm.core.files import open_atomic
from rolellm.making.audit import Audit, load_consequences
from rolellm.reporting.templates import environment, read_template
from rolellm.version import __version__


def write_audit(out: Path, audit: Audit) -> Path:
    """Write what `rolellm.making.audit.audit_release` found, complete or not at all.

    Args:
        out: The HTML file to write; its folder is made where needed.
        audit: What to show.

    Returns:
        The file written.
    """
    checks = dict.fromkeys(finding.check for finding in audit.findings)
    page = (
        environment()
        .get_template("audit.html.jinja")
        .generate(
            css=Markup(read_template("page.css")),
            files=len({finding.file for finding in audit.findings}),
            checks={check: [item for item in audit.findings if item.check == check] for check in checks},
            names=list(checks),
            severities={name: of for name, of in load_consequences().items() if of.keys() & checks.keys()},
            lines=audit.table.lines,
            missing=audit.table.missing,
            unread=audit.unread,
            version=__version__,
        )
    )
    with open_atomic(out) as stream:
        stream.writelines(page)
    return out
