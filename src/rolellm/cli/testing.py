"""``rolellm test``: what a character has to keep, as the maker of its card tests it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, resumable, say, show_table
from rolellm.cli.play import Played, played_model


@with_options
def test(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="CHARACTER.yaml")],
    asked: Played,
    out: Path = Path("character-tests"),
    init: bool = False,
    as_json: AsJson = False,
) -> None:
    """Test a character: role, language, knowledge, catchphrases, jailbreaks; exit code 1 when an assertion fails.

    Args:
        file: The test file (docs/testing_characters.md); with --init, a character's folder, a card, or a role of
            RoleBench.
        out: Folder for tests.html, tests.json, and the journal: a second run sends only new messages.
        init: Write a first test file for the character to the current folder, for you to edit.
    """
    from rolellm.testing.suite import first_file, read_tests

    if init:
        say(f"Written: {first_file(file)}. Next: edit it, then run rolellm test")
        return

    from rolellm.report.page import PageContent, write_page
    from rolellm.report.score_table import to_rich
    from rolellm.report.tests_section import tests_table
    from rolellm.testing.run import model_of, run_tests

    tests = read_tests(file)
    named = asked.model or asked.llm_file or asked.base_url
    llm = model_of(tests.model) if tests.model is not None and named is None else played_model(asked)
    with resumable(context):
        found = run_tests(tests, llm, out)
    counts = found["counts"]
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    recipe = {"file": file, "models": found["models"], "settings": found["settings"]}
    title = f"Tests of {found['role']}"
    page = write_page(out / "tests.html", PageContent(title, (), summary=summary, recipe=recipe, tests=found))
    if as_json:
        print_json(found)
    else:
        show_table(to_rich(tests_table(found), digits=1))
        for one in found["assertions"]:
            for trial in one["trials"]:
                if one["verdict"] != "passed" and (trial["problem"] or trial["ended"]):
                    say(f"{one['name']}: {trial['problem'] or trial['ended']}")
                    break
        say(f"{summary}; {found['flaky']} flaky. Replies: {page}")
    if counts["passed"] < len(found["assertions"]):
        raise typer.Exit(1)
