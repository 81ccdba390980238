"""``rolellm role``: from scripts and character cards to a role's profile."""

from __future__ import annotations

import typer

from rolellm.cli.role import build, cards, parse, release, show

app = typer.Typer(
    name="role", help="Make a role: parse its script, build its profile, pack its data.", no_args_is_help=True
)
app.command("parse")(parse.parse)
app.command("import-card")(cards.import_card)
app.command("build")(build.build)
app.command("show")(show.show)
app.command("export-card")(cards.export_card)
app.command("release")(release.release)
