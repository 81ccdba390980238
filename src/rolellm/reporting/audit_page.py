"""The faults of a release as one HTML file: a table of all of them, examples of each, and Table 1."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from rolellm.core.files import open_atomic
from rolellm.making.audit import Audit
from rolellm.reporting.templates import environment, read
from rolellm.version import __version__


def write_audit(out: Path, audit: Audit) -> Path:
    """Write what `rolellm.making.audit.audit_release` found, complete or not at all.

    Args:
        out: The HTML file to write; its folder is made where needed.
        audit: What to show.

    Returns:
        The file written.
    """
    files = dict.fromkeys(finding.file for finding in audit.findings)
    page = (
        environment()
        .get_template("audit.html.jinja")
        .generate(
            css=Markup(read("page.css")),
            files={file: [item for item in audit.findings if item.file == file] for file in files},
            lines=audit.table.lines,
            missing=audit.table.missing,
            unread=audit.unread,
            version=__version__,
        )
    )
    with open_atomic(out) as stream:
        stream.writelines(page)
    return out
