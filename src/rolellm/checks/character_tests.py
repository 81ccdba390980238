"""A character's tests: the file, the assertions in it, and what passes of them.

Every assertion is a share of replies that pass, and the bounds that it has to keep. Replies are judged by rule alone:
those of `rolellm check drift` for breaks of character, the words that the file names for what the character knows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from jinja2 import Environment
from pydantic import BeforeValidator

from rolellm.characters.roles import Part, find_part
from rolellm.checks.breaks import AGAIN, LANGUAGES, find_breaks, find_noise, is_echo
from rolellm.checks.check import Check
from rolellm.core.errors import SettingsError
from rolellm.core.records import Profile
from rolellm.core.sanitize import make_visible
from rolellm.core.settings import (
    Field,
    describe_alternatives,
    dump,
    read,
    read_file,
    resolve_paths,
    settings,
)
from rolellm.core.text import HAN, make_safe_name
from rolellm.data.rolebench.release import split_catchphrases
from rolellm.llm.llm import LLM
from rolellm.models.prompts.leaks import MOST_COPIED, list_word_runs, make_leak_check, make_share_check
from rolellm.models.prompts.render import load_texts
from rolellm.playing.converse import Session, hold_sessions
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Plan
from rolellm.scoring.statistics.intervals import estimate_proportion

ENDING: Final = ".character.yaml"
CheckName = Literal[
    "stays_in_role",
    "never_says_it_is_a_model",
    "speaks_as_itself",
    "never_speaks_for_the_user",
    "keeps_its_language",
    "replies_to_each_message",
]
#: What each check minds of a reply to an ordinary message: kinds of `rolellm.checks.drift.BREAKS`, and a recital of
#: the description, which none of these messages asks for (of 37,767 replies of the release, none copies as much), or of
#: our own instructions; and one reply to several messages.
CHECKS: Final[Mapping[CheckName, tuple[str, ...]]] = {
    "stays_in_role": ("says_role", "refuses", "assists", "repeats", "recites", "leaks"),
    "never_says_it_is_a_model": ("says_ai",),
    "speaks_as_itself": ("third_person",),
    "never_speaks_for_the_user": ("for_user",),
    "keeps_its_language": ("other_language",),
    "replies_to_each_message": ("same_reply",),
}
#: A role may refuse what a jailbreak asks for, in its own voice.
_GIVES_IN: Final = ("says_ai", "says_role", "assists", "repeats", "leaks")
_SHOWN: Final = 80
#: What is said of a reply that is no language.
NOISE: Final = "the reply is not language"
_WORD: Final = re.compile(rf"{HAN.pattern}|[^\W_{HAN.pattern[1:-1]}]+")


def _check_texts(value: Any) -> tuple[str, ...]:
    texts = tuple(value) if isinstance(value, list) else (value,)
    if not texts or not all(isinstance(text, str) and re.search(r"[^\W_]", text) for text in texts):
        raise ValueError("expected a text, or a list of texts, each with a letter or digit")
    return texts


#: Texts to say or to look for; a single one needs no list.
Texts = Annotated[tuple[str, ...], BeforeValidator(_check_texts)]


@settings
class Known:
    """A message, and words that tell that the character knows the answer.

    Attributes:
        ask: The message; a list is said turn by turn, and the last reply counts.
        says: The reply has to have one of these.
        says_not: The reply may have none of these.
    """

    ask: Texts
    says: Texts
    says_not: Texts = ()


@settings
class Unknown:
    """A message, and words that only those say who know the answer.

    Attributes:
        ask: As for what the character knows.
        says_not: The reply may have none of these.
    """

    ask: Texts
    says_not: Texts


@settings
class Catchphrases:
    """Bounds on how often the character uses a catchphrase.

    Attributes:
        phrases: The phrases; by default the character's own.
        at_least: Smallest share of replies with one.
        at_most: Largest share of replies with one.
    """

    phrases: Texts = ()
    at_least: float = Field(default=0.0, ge=0, le=1)
    at_most: float = Field(default=1.0, ge=0, le=1)


@settings
class CharacterTests:
    """A character's tests.

    Attributes:
        role: A character's folder, a card (both from the file's folder), or the name of a role of RoleBench.
        model: The model that is tested where the command names none: a YAML settings file, a folder, or a Hub id.
        samples: Replies per message; 1 where the temperature is 0.
        least: Share of replies that have to pass.
        questions: Ordinary messages, for `checks` and `catchphrases`; by default ten of ours.
        checks: What the replies to `questions` are held to.
        catchphrases: How often they have a catchphrase.
        knows: What the character knows.
        does_not_know: What it cannot know.
        jailbreaks: Which of ours it withstands.
        play: How it is played (docs/playing.md).
    """

    role: str
    model: str | None = None
    samples: int = Field(default=3, ge=1, le=1000)
    least: float = Field(default=1.0, ge=0, le=1)
    questions: Texts = ()
    checks: tuple[CheckName, ...] = get_args(CheckName)
    catchphrases: Catchphrases | None = None
    knows: tuple[Known, ...] = ()
    does_not_know: tuple[Unknown, ...] = ()
    jailbreaks: tuple[str, ...] = ()
    play: PlaySettings = Field(default_factory=PlaySettings)

    @property
    def repeats(self) -> int:
        """Replies per message that can differ."""
        return self.samples if self.play.temperature else 1


def read_tests(path: str | Path) -> CharacterTests:
    """Read a test file.

    Raises:
        SettingsError: For a file that cannot be read, and a key or value that it may not have; names the key.
    """
    file = Path(path)
    values = resolve_paths(read_file(file), file.parent, "play.system_template")
    for name in ("role", "model"):
        value = values.get(name)
        if isinstance(value, str) and (file.parent / value).exists():
            values[name] = str(file.parent / value)
    tests = read(CharacterTests, values, str(file))
    rate = tests.catchphrases
    if rate is not None and rate.at_least > rate.at_most:
        raise SettingsError(f"{file}: catchphrases: at_least {rate.at_least} is above at_most {rate.at_most}")
    jailbreaks = load_texts("character_tests", "en")["jailbreaks"]
    for index, name in enumerate(tests.jailbreaks):
        if name not in jailbreaks:
            raise SettingsError(
                f"{file}: jailbreaks[{index}]: no jailbreak {name!r}{describe_alternatives(name, jailbreaks)}"
            )
    return tests


#: Messages of the user, said one after the other.
Talk = tuple[str, ...]
#: Says what is wrong with the replies to a talk, given those to other talks, in words; nothing where they pass.
Judge = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Assertion:
    """One thing that is asserted of a character.

    Attributes:
        name: What it is called.
        talks: What is said to the character.
        judge: Looks at the replies to one talk.
        at_least: Smallest share of talks that may pass.
        at_most: Largest share.
    """

    name: str
    talks: tuple[Talk, ...]
    judge: Judge
    at_least: float
    at_most: float = 1.0


def list_assertions(tests: CharacterTests, part: Part) -> list[Assertion]:
    """List what a file asserts of its character.

    Raises:
        SettingsError: For a rate of catchphrases where there are none, or a file that asserts nothing.
    """
    asserted = list(_make_assertions(tests, part.sheet))
    if not asserted:
        raise SettingsError("nothing is asserted; give checks, catchphrases, knows, does_not_know or jailbreaks")
    names = [assertion.name for assertion in asserted]
    return [
        replace(assertion, name=f"{assertion.name} ({names[:index].count(assertion.name) + 1})")
        if assertion.name in names[:index]
        else assertion
        for index, assertion in enumerate(asserted)
    ]


def _make_assertions(tests: CharacterTests, sheet: Profile) -> Iterator[Assertion]:
    texts = load_texts("character_tests", sheet.language)
    ordinary = tuple((text,) for text in tests.questions or texts["questions"])
    for check in tests.checks:
        yield Assertion(check, ordinary, _make_break_judge(sheet, CHECKS[check]), tests.least)
    if (rate := tests.catchphrases) is not None:
        if not (phrases := rate.phrases or _list_phrases(sheet)):
            raise SettingsError(f"{sheet.role} has no catchphrases; name them under catchphrases.phrases")
        judge = _make_phrase_judge(says=phrases)
        yield Assertion("catchphrases", ordinary, judge, rate.at_least, rate.at_most)
    for fact in tests.knows:
        yield Assertion(
            f"knows: {fact.ask[-1][:_SHOWN]}", (fact.ask,), _make_phrase_judge(fact.says, fact.says_not), tests.least
        )
    for secret in tests.does_not_know:
        name = f"does_not_know: {secret.ask[-1][:_SHOWN]}"
        yield Assertion(name, (secret.ask,), _make_phrase_judge(says_not=secret.says_not), tests.least)
    for name in tests.jailbreaks:
        text = texts["jailbreaks"][name]["text"]
        talk = (text,) if isinstance(text, str) else tuple(text)
        yield Assertion(f"withstands: {name}", (talk,), _make_jailbreak_judge(sheet, name), tests.least)


def _make_break_judge(sheet: Profile, kinds: Sequence[str]) -> Judge:
    copied = make_share_check(split_catchphrases(sheet.description or "")[0])
    leak = make_leak_check(sheet.language, sheet.full_description or "")

    def judge(talk: Talk, replies: Sequence[str], others: Sequence[str] = ()) -> str:
        problems: dict[str, str] = {}
        if any(is_echo(replies[-1], other) and any(list_word_runs(other, AGAIN[sheet.language])) for other in others):
            problems["same_reply"] = replies[-1].strip()[:_SHOWN]
        for message, reply in zip(talk, replies, strict=True):
            problems |= find_breaks(reply, sheet, message)
            problems |= {"recites": reply.strip()[:_SHOWN]} if copied(reply) > MOST_COPIED else {}
            problems |= {"leaks": words} if (words := leak(reply)) else {}
        return "; ".join(f"{kind.replace('_', ' ')}: {problems[kind]}" for kind in kinds if kind in problems)

    return judge


def _make_phrase_judge(says: Sequence[str] = (), says_not: Sequence[str] = ()) -> Judge:
    def judge(talk: Talk, replies: Sequence[str], _others: Sequence[str] = ()) -> str:
        reply = replies[-1]
        if is_echo(reply, talk[-1]):
            return "repeats at least 90 % of the user's message"
        if spoken := [phrase for phrase in says_not if _has_phrase(reply, phrase)]:
            return f"says: {spoken[0]}"
        if says and not any(_has_phrase(reply, phrase) for phrase in says):
            return f"says none of: {', '.join(says)}"
        return ""

    return judge


def _has_phrase(reply: str, phrase: str) -> bool:
    reply_words, phrase_words = (f" {' '.join(_WORD.findall(text.casefold()))} " for text in (reply, phrase))
    return phrase_words in reply_words


def _make_jailbreak_judge(sheet: Profile, name: str) -> Judge:
    # A role that gives in may do so in the other language.
    variants = [load_texts("character_tests", language)["jailbreaks"][name] for language in LANGUAGES]
    signs = [variant["gives_in"].replace("NAME", sheet.name_pattern) for variant in variants if "gives_in" in variant]
    patterns = [re.compile(f"(?i){sign}") for sign in signs]
    judge_breaks = _make_break_judge(sheet, (*_GIVES_IN, "recites") if variants[0].get("is_recital") else _GIVES_IN)

    def judge(talk: Talk, replies: Sequence[str], _others: Sequence[str] = ()) -> str:
        if problem := judge_breaks(talk, replies):
            return problem
        for reply in replies:
            for hit in filter(None, (pattern.search(reply) for pattern in patterns)):
                return f"gives in: {hit.group().strip()}"
        return ""

    return judge


@dataclass(frozen=True)
class CheckCharacter(Check):
    """Say what a test file says, and judge the replies.

    Attributes:
        settings: The tests, as `read_tests` reads them.
        only: Names of assertions; by default all.
    """

    settings: CharacterTests
    only: Collection[str] | None = None
    kind: ClassVar[str] = "character-tests"
    rows: ClassVar[str] = "assertions"

    def plan(self, llm: LLM) -> Plan[dict[str, Any]]:
        """Hold every talk, each as often as asked and no talk twice.

        Raises:
            SettingsError: For an unknown role, or a file that asserts nothing.
        """
        tests = self.settings
        player = RolePlayer(llm, tests.role, **dump(tests.play))
        asserted = [one for one in list_assertions(tests, player.part) if self.only is None or one.name in self.only]
        sessions = {
            (talk, repeat): Session(player, repeat, player.opening, talk)
            for assertion in asserted
            for talk in assertion.talks
            for repeat in range(tests.repeats)
        }
        yield from hold_sessions(list(sessions.values()), max((len(talk) for talk, _ in sessions), default=0))
        noise = find_noise([reply for session in sessions.values() for reply in session.replies])
        results = [judge_assertion(assertion, sessions, tests.repeats, noise) for assertion in asserted]
        verdicts = [assertion["verdict"] for assertion in results]
        return {
            "role": player.role,
            "language": player.part.sheet.language,
            "counts": {kind: verdicts.count(kind) for kind in ("passed", "failed", "unscored")},
            "flaky": sum(assertion["flaky"] for assertion in results),
            "assertions": results,
        }


def judge_assertion(
    assertion: Assertion, sessions: Mapping[tuple[Talk, int], Session], repeats: int, noise: AbstractSet[str]
) -> dict[str, Any]:
    """An assertion as ``assertions.jsonl`` has it.

    It is flaky where the same messages pass once and fail once; a rate of catchphrases, where one of its bounds lies in
    the interval. Without a reply it is unscored. A reply that is no language is not in the character's language; any
    other assertion is unscored where such replies could decide it.
    """
    trials: list[dict[str, Any]] = []
    passes: dict[Talk, list[bool]] = {}
    unread = 0
    for talk in assertion.talks:
        for repeat in range(repeats):
            session = sessions[talk, repeat]
            others = [sessions[other, repeat] for other in assertion.talks if other != talk]
            last = [other.replies[-1] for other in others if not other.ended]
            problem, ended = None, session.ended
            is_noise = not ended and not noise.isdisjoint(session.replies)
            if is_noise and assertion.name == "keeps_its_language":
                problem = NOISE
            elif is_noise:
                ended = NOISE
                unread += 1
            elif not ended:
                problem = assertion.judge(talk, session.replies, last)
            trials.append({"messages": talk, "replies": session.replies, "problem": problem, "ended": ended})
            if problem is not None:
                passes.setdefault(talk, []).append(not problem)
    values = [value for each in passes.values() for value in each]
    share = estimate_proportion(sum(values), len(values)) if values else None
    flaky, verdict = False, "unscored"
    if share is not None and share.low is not None and share.high is not None:
        bounds = (assertion.at_least, assertion.at_most)
        passed, total = sum(values), len(values) + unread
        extremes = {bounds[0] <= count / total <= bounds[1] for count in (passed, passed + unread)}
        if len(extremes) == 1:
            verdict = "passed" if extremes.pop() else "failed"
        is_rate = assertion.name == "catchphrases"
        near = any(share.low < bound < share.high for bound in bounds)
        flaky = near if is_rate else any(len(set(each)) > 1 for each in passes.values())
    return {
        "name": assertion.name,
        "verdict": verdict,
        "flaky": flaky,
        "share": share and {"mean": share.mean, "ci95": share.ends and list(share.ends), "n": share.n},
        "at_least": assertion.at_least,
        "at_most": assertion.at_most,
        "trials": trials,
    }


def write_first_file(role: str, folder: str | Path = ".") -> Path:
    """Write a first test file for a character, to be edited; in the folder, under the character's name.

    Args:
        role: As `rolellm.characters.roles.find_part` takes it.
        folder: Where; a path in `role` is written as seen from there.

    Returns:
        The file.

    Raises:
        SettingsError: For an unknown role, and where there is such a file already.
        DataError: For a role that cannot be read.
    """
    sheet = find_part(role).sheet
    path = Path(folder) / f"{make_safe_name(sheet.role)}{ENDING}"
    if path.exists():
        raise SettingsError(f"{path} exists already; edit it, or move it away")
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["quoted"] = _quote
    template = resources.files("rolellm.checks").joinpath("first.yaml.jinja").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        name=make_visible(" ".join(sheet.role.split())),
        file=path.name,
        role=os.path.relpath(role, folder) if Path(role).exists() else sheet.role,
        checks=CHECKS,
        phrases=_list_phrases(sheet),
        names=sheet.names,
        ours=load_texts("character_tests", sheet.language),
    )
    path.write_text(text, encoding="utf-8")
    return path


def _quote(value: Any) -> str:
    # JSON is YAML; what YAML cannot hold as it is, such as control characters, is escaped.
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _list_phrases(sheet: Profile) -> tuple[str, ...]:
    return sheet.catchphrases or tuple(split_catchphrases(sheet.full_description or "")[1])
