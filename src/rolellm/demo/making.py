"""Two roles out of the sample's own scenes, from script to data set: stages 1 to 3 of the paper.

Rules that quote their prompt answer (`rolellm.making.scripted`): that shows that the stages work together, and nothing
about how good a real model's data would be.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rolellm.characters.scripts.parse import parse_script
from rolellm.core.errors import require
from rolellm.core.text import make_safe_name
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.making.instruct.run import KEPT, Instruct
from rolellm.making.profile.build import BuildProfile, build_folder
from rolellm.making.profile.start import start_sheet
from rolellm.making.release import gather, write_release
from rolellm.making.respond import Respond, read_instructions
from rolellm.making.scripted import scripted_model
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings
from rolellm.runs import run_step

ROLES: Final = ("Queen of Hearts", "鲁智深")
BY: Final = (
    "No language model was asked: rules that quote their prompt take its place, and spoil one pair in twelve on "
    "purpose, so that filters have something to do. The stages, their client and their files are the real ones."
)
#: Pairs of a role that are shown.
_SHOWN: Final = 3
_INSTRUCT: Final = InstructSettings(per_role=50, chunk_tokens=300)
#: General instructions that a role replies to.
_INSTRUCTIONS: Final = 10


def make_roles(
    folder: str | Path, say: Callable[[str], None] = lambda _: None, *, roles: Sequence[str] = ROLES
) -> dict[str, Any]:
    """Make roles of the sample's scripts, and a data set of them that loads.

    Args:
        folder: Gets a folder for each character, and ``release``. What it holds is replaced.
        say: Called with a line before each stage.
        roles: Roles of the sample.

    Returns:
        ``by`` (who answered, in a sentence), ``release`` (the folder that loads as a data set), and ``roles``: the
        counts of each, and its first ``pairs``, which `rolellm.reporting.page` shows.

    Raises:
        MissingExtraError: Without ``bm25s`` or ``jsonschema``.
    """
    require("bm25s", "jsonschema", extra="demo")
    target = Path(folder)
    _empty_folder(target)
    llm = LLM.of(scripted_model())
    llm.options = replace(llm.options, show_progress=False)
    folders = {role: target / make_safe_name(role) for role in roles}
    entries = []
    for role, home in folders.items():
        stages = "profile, questions, replies; rules that quote their prompt answer, no language model"
        say(f"Making {role} of its script: {stages}")
        entries.append(_make_role(role, home, llm))
    say("Writing them as a data set")
    release = write_release(list(map(gather, folders.values())), target / "release")
    return {"by": BY, "release": str(release.out), "roles": entries}


def _empty_folder(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _make_role(role: str, folder: Path, llm: LLM) -> dict[str, Any]:
    """Make a role of its script, each stage as its command does it."""
    script = sample_folder() / "scripts" / f"{role}.txt"
    parsed = parse_script(script, role)
    start = start_sheet(parsed.turns, role, language=parsed.hints.language, script=script.stem)
    built = build_folder(BuildProfile(start, BuildSettings(), folder), llm)
    character = built.result
    instructed = run_step(Instruct(character, _INSTRUCT), llm, folder / "instruct")
    general = read_instructions(SAMPLE, character, _INSTRUCTIONS)
    responded = run_step(Respond(character, general), llm, folder / "respond")
    # One reply each to the role's own questions is RoleGPT's baseline for them.
    own = read_instructions(folder / "instruct" / KEPT, character)
    run_step(Respond(character, own, RespondSettings(replies=1)), llm, folder / "respond-questions")
    source = {"role": role, "language": character.language}
    profile = {
        "turns": parsed.kinds,
        "own_lines": built.summary["counts"]["own_lines"],
        "offered": character.made["build"]["offered"],
        "catchphrases": character.catchphrases,
    }
    questions = {name: instructed.summary["counts"][name] for name in ("candidates", "kept", "dropped")}
    replies = {name: responded.summary[name] for name in ("instructions", "replies")}
    pairs = []
    for verdict in instructed.result.kept[:_SHOWN]:
        pair = verdict.candidate
        pairs.append({"question": pair.question, "answer": pair.answer, "type": pair.type})
    return {**source, **profile, **questions, **replies, "pairs": pairs}
