"""Asks the model what a character's tests say, and counts what passes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import ModelError
from rolellm.core.files import write_json
from rolellm.core.settings import dump
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.bootstrap import wilson
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Failure, Finish, Message, assistant, speech_of, user
from rolellm.playing.player import RolePlayer
from rolellm.testing.suite import Assertion, CharacterTests, Talk, assertions
from rolellm.version import __version__

TESTS: Final = "tests.json"
#: A reply that was cut off, or that a server's filter refused, is judged like others.
_ALSO: Final[tuple[Finish, ...]] = ("length", "refused")


@dataclass(slots=True)
class _Held:
    """A talk as it was held: the replies, as far as it went, and why it ended early."""

    replies: list[str]
    ended: str = ""


def model_of(named: str) -> LLM:
    """The model that a test file or ``--character-model`` names: a YAML settings file, a folder, or a Hub id.

    Raises:
        SettingsError: For a settings file that cannot be read.
    """
    is_file = Path(named).is_file() or Path(named).suffix in (".yaml", ".yml")
    return LLM.of(named) if is_file else LLM(backend="local", model=named)


def run_tests(
    tests: CharacterTests, llm: LLM, folder: str | Path, only: Collection[str] | None = None
) -> dict[str, Any]:
    """Ask what a test file says, judge the replies, and write ``tests.json``.

    Args:
        tests: As `rolellm.testing.suite.read_tests` reads them.
        llm: Who plays the character.
        folder: The run's, with the journal: what it has an answer to is not asked again.
        only: Names of assertions; by default all.

    Returns:
        What ``tests.json`` has.

    Raises:
        SettingsError: For an unknown role, or a file that asserts nothing.
        StoppedShortError: As `rolellm.llm.client.Client.ask`.
        EndpointError: As `rolellm.llm.client.Client.ask`.
    """
    player = RolePlayer(llm, tests.role, **dump(tests.play))
    asserted = assertions(tests, player.part)
    if only is not None:
        asserted = [one for one in asserted if one.name in only]
    with Client(folder, llm.models, llm.options) as client:
        held = hold(client, player, (talk for one in asserted for talk in one.talks), tests.repeats)
        spent = client.spent.to_dict()
    results = [judged(one, held, tests.repeats) for one in asserted]
    verdicts = [one["verdict"] for one in results]
    found = {
        "stage": "test",
        "rolellm": __version__,
        "role": player.role,
        "language": player.part.sheet.language,
        "settings": dump(tests),
        "models": llm.describe(),
        "counts": {kind: verdicts.count(kind) for kind in ("passed", "failed", "unscored")},
        "flaky": sum(one["flaky"] for one in results),
        "assertions": results,
        "spent": spent,
    }
    write_json(Path(folder) / TESTS, found)
    return found


def hold(client: Client, player: RolePlayer, talks: Iterable[Talk], repeats: int) -> dict[tuple[Talk, int], _Held]:
    """Hold every talk, each as often as asked and no talk twice; a turn of all of them at once."""
    held = {(talk, repeat): _Held([]) for talk in talks for repeat in range(repeats)}
    greeting = [assistant(player.part.greeting)] if player.part.greeting else []
    for turn in range(max((len(talk) for talk, _ in held), default=0)):
        asked, requests = [], []
        for (talk, repeat), one in held.items():
            if one.ended or turn >= len(talk):
                continue
            try:
                prompt = player.prompt(_said(greeting, talk[: turn + 1], one.replies))
            except ModelError as error:
                one.ended = str(error)
                continue
            asked.append(one)
            requests.append(replace(player.request(prompt, repeat=repeat), tag=player.role))
        for one, outcome in zip(asked, client.ask(requests, speech_of, also=_ALSO), strict=True):
            if isinstance(outcome, Failure):
                one.ended = outcome.reason
            else:
                one.replies.append(outcome.value)
    return held


def _said(greeting: Sequence[Message], asked: Talk, replies: Sequence[str]) -> list[Message]:
    turns = [turn for text, reply in zip(asked, replies, strict=False) for turn in (user(text), assistant(reply))]
    return [*greeting, *turns, user(asked[-1])]


def judged(one: Assertion, held: Mapping[tuple[Talk, int], _Held], repeats: int) -> dict[str, Any]:
    """An assertion as ``tests.json`` has it.

    It is flaky where the same messages pass once and fail once; a rate of catchphrases, where one of its bounds lies in
    the interval. Without a reply it is unscored.
    """
    trials: list[dict[str, Any]] = []
    passes: dict[Talk, list[bool]] = {}
    for talk in one.talks:
        for repeat in range(repeats):
            found = held[talk, repeat]
            problem = None if found.ended else one.judge(talk, found.replies)
            trials.append({"messages": talk, "replies": found.replies, "problem": problem, "ended": found.ended})
            if problem is not None:
                passes.setdefault(talk, []).append(not problem)
    values = [value for each in passes.values() for value in each]
    share = wilson(sum(values), len(values)) if values else None
    flaky, verdict = False, "unscored"
    if share is not None and share.low is not None and share.high is not None:
        verdict = "passed" if one.at_least <= share.mean <= one.at_most else "failed"
        bounds = (one.at_least, one.at_most)
        is_rate = one.name == "catchphrases"
        near = any(share.low < bound < share.high for bound in bounds)
        flaky = near if is_rate else any(len(set(each)) > 1 for each in passes.values())
    known = metric_dict(share)
    return {
        "name": one.name,
        "verdict": verdict,
        "flaky": flaky,
        "share": known and {name: known[name] for name in ("mean", "ci95", "n")},
        "at_least": one.at_least,
        "at_most": one.at_most,
        "trials": trials,
    }
