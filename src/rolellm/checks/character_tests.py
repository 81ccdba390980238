"""A character's tests: the file, the assertions in it, and what passes of them.

Every assertion is a share of replies that pass, and the bounds that it has to keep. Replies are judged by rule alone:
those of `rolellm check drift` for breaks of character, the words that the file names for what the character knows.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from jinja2 import Environment
from pydantic import BeforeValidator

from rolellm.characters.roles import Part, find_part
from rolellm.checks.breaks import AGAIN, LANGUAGES, find_breaks, find_noise, is_echo, shows_ignorance
from rolellm.core.errors import SettingsError
from rolellm.core.records import Language, Profile
from rolellm.core.result import Result
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
from rolellm.core.table import Table, TableRow
from rolellm.core.text import HAN, format_count, make_safe_name
from rolellm.data.rolebench.release import split_catchphrases
from rolellm.llm.llm import LLM
from rolellm.models.prompts.leaks import MOST_COPIED, list_word_runs, make_leak_check, make_share_check
from rolellm.models.prompts.render import load_texts
from rolellm.playing.converse import Session, hold_sessions
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Plan, Records, Step
from rolellm.scoring.statistics.intervals import Interval, Measured, estimate_proportion

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
#: The assertion that is a rate, with two bounds.
_RATE: Final = "catchphrases"
#: What is said of a reply that is no language.
NOISE: Final = "the reply is not language"
_WORD: Final = re.compile(rf"{HAN.pattern}|[^\W_{HAN.pattern[1:-1]}]+")


def _check_texts(value: Any) -> tuple[str, ...]:
    texts = tuple(value) if isinstance(value, list) else (value,)
    has_words = [isinstance(text, str) and bool(re.search(r"[^\W_]", text)) for text in texts]
    if not texts or not all(has_words):
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
    """A message that the character cannot know the answer to.

    Attributes:
        ask: As for what the character knows.
        says_not: The reply may have none of these words, which only those say who know, or think so; without any, the
            reply has to say that the character does not know.
    """

    ask: Texts
    says_not: Texts = ()


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
#: Says what is wrong with the replies to a talk, given the last replies to other talks; nothing where they pass.
Judge = Callable[[Talk, Sequence[str], Sequence[str]], str]


class BreakJudge:
    """Finds breaks of character in the replies to a talk.

    Args:
        sheet: The role.
        kinds: The kinds to look for, as in `CHECKS`.
    """

    def __init__(self, sheet: Profile, kinds: Sequence[str]) -> None:
        self._sheet = sheet
        self._kinds = kinds
        self._measure_copied = make_share_check(split_catchphrases(sheet.description or "")[0])
        self._find_leak = make_leak_check(sheet.language, sheet.full_description or "")

    def __call__(self, talk: Talk, replies: Sequence[str], other_replies: Sequence[str]) -> str:
        """Describe the problems; empty where there are none."""
        problems: dict[str, str] = {}
        if any(self._is_same(replies[-1], text) for text in other_replies):
            problems["same_reply"] = replies[-1].strip()[:_SHOWN]
        for message, reply in zip(talk, replies, strict=True):
            problems |= find_breaks(reply, self._sheet, message)
            if self._measure_copied(reply) > MOST_COPIED:
                problems["recites"] = reply.strip()[:_SHOWN]
            leak = self._find_leak(reply)
            if leak:
                problems["leaks"] = leak
        clauses = []
        for kind in self._kinds:
            if kind in problems:
                clauses.append(f"{kind.replace('_', ' ')}: {problems[kind]}")
        return "; ".join(clauses)

    def _is_same(self, reply: str, text: str) -> bool:
        return is_echo(reply, text) and any(list_word_runs(text, AGAIN[self._sheet.language]))


@dataclass(frozen=True)
class PhraseJudge:
    """Looks for phrases in the last reply.

    Attributes:
        says: It must have one of these; empty for none.
        says_not: It must have none of these.
    """

    says: Sequence[str] = ()
    says_not: Sequence[str] = ()

    def __call__(self, talk: Talk, replies: Sequence[str], other_replies: Sequence[str]) -> str:
        """Describe the problem; empty where there is none."""
        reply = replies[-1]
        if is_echo(reply, talk[-1]):
            return "repeats at least 90 % of the user's message"
        for phrase in self.says_not:
            if _has_phrase(reply, phrase):
                return f"says: {phrase}"
        if self.says and not any(_has_phrase(reply, phrase) for phrase in self.says):
            return f"says none of: {', '.join(self.says)}"
        return ""


@dataclass(frozen=True)
class IgnoranceJudge:
    """Wants the last reply to say that the role does not know.

    Attributes:
        language: The role's.
    """

    language: Language

    def __call__(self, talk: Talk, replies: Sequence[str], other_replies: Sequence[str]) -> str:
        """Describe the problem; empty where there is none."""
        is_ignorant = shows_ignorance(replies[-1], self.language)
        return "" if is_ignorant else "does not say that the character does not know"


class JailbreakJudge:
    """Finds what shows that a role gave in to a jailbreak.

    Args:
        sheet: The role.
        name: The jailbreak.
    """

    def __init__(self, sheet: Profile, name: str) -> None:
        # A role that gives in may do so in the other language.
        variants = [load_texts("character_tests", language)["jailbreaks"][name] for language in LANGUAGES]
        self._patterns = []
        for variant in variants:
            if "gives_in" in variant:
                sign = variant["gives_in"].replace("NAME", sheet.name_pattern)
                self._patterns.append(re.compile(f"(?i){sign}"))
        recital = ("recites",) if variants[0].get("is_recital") else ()
        self._judge_breaks = BreakJudge(sheet, (*_GIVES_IN, *recital))

    def __call__(self, talk: Talk, replies: Sequence[str], other_replies: Sequence[str]) -> str:
        """Describe the problem; empty where there is none."""
        problem = self._judge_breaks(talk, replies, ())
        if problem:
            return problem
        for reply in replies:
            for pattern in self._patterns:
                match = pattern.search(reply)
                if match:
                    return f"gives in: {match.group().strip()}"
        return ""


def _has_phrase(reply: str, phrase: str) -> bool:
    return _join_words(phrase) in _join_words(reply)


def _join_words(text: str) -> str:
    words = " ".join(_WORD.findall(text.casefold()))
    return f" {words} "


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
    assertions: list[Assertion] = []
    times = Counter[str]()
    for assertion in _make_assertions(tests, part.sheet):
        name = assertion.name
        times[name] += 1
        if times[name] > 1:
            assertion = replace(assertion, name=f"{name} ({times[name]})")
        assertions.append(assertion)
    if not assertions:
        raise SettingsError("nothing is asserted; give checks, catchphrases, knows, does_not_know or jailbreaks")
    return assertions


def _make_assertions(tests: CharacterTests, sheet: Profile) -> Iterator[Assertion]:
    texts = load_texts("character_tests", sheet.language)
    ordinary = tuple((text,) for text in tests.questions or texts["questions"])
    for check in tests.checks:
        yield Assertion(check, ordinary, BreakJudge(sheet, CHECKS[check]), tests.least)
    rate = tests.catchphrases
    if rate is not None:
        phrases = rate.phrases or _list_phrases(sheet)
        if not phrases:
            raise SettingsError(f"{sheet.role} has no catchphrases; name them under catchphrases.phrases")
        yield Assertion(_RATE, ordinary, PhraseJudge(says=phrases), rate.at_least, rate.at_most)
    for fact in tests.knows:
        judge: Judge = PhraseJudge(fact.says, fact.says_not)
        name = f"knows: {fact.ask[-1][:_SHOWN]}"
        yield Assertion(name, (fact.ask,), judge, tests.least)
    for secret in tests.does_not_know:
        judge = IgnoranceJudge(sheet.language)
        if secret.says_not:
            judge = PhraseJudge(says_not=secret.says_not)
        name = f"does_not_know: {secret.ask[-1][:_SHOWN]}"
        yield Assertion(name, (secret.ask,), judge, tests.least)
    for jailbreak in tests.jailbreaks:
        text = texts["jailbreaks"][jailbreak]["text"]
        talk = (text,) if isinstance(text, str) else tuple(text)
        judge = JailbreakJudge(sheet, jailbreak)
        yield Assertion(f"withstands: {jailbreak}", (talk,), judge, tests.least)


Verdict = Literal["failed", "unscored", "passed"]
#: Verdicts with their signs, in the order in which they are shown.
SIGNED: Final[Mapping[Verdict, str]] = {"failed": "✗ failed", "unscored": "? unscored", "passed": "✓ passed"}


@dataclass(frozen=True, slots=True)
class Trial:
    """One talk with the character.

    Attributes:
        messages: The user's messages.
        replies: The character's replies.
        problem: What is wrong with them; empty where they pass, ``None`` where they were not judged.
        ended: Why they were not judged; empty where they were.
    """

    messages: Talk
    replies: tuple[str, ...]
    problem: str | None
    ended: str


@dataclass(frozen=True, slots=True)
class AssertionResult:
    """The result of an assertion.

    Attributes:
        name: Its name.
        verdict: Whether the share of talks that pass is within its bounds; unscored without a reply, and where replies
            that are no language could decide it.
        flaky: Whether the same messages pass once and fail once; for a rate of catchphrases, whether one of the bounds
            lies in the interval.
        share: The share of talks that pass; ``None`` where none was judged.
        at_least: Smallest share that may pass.
        at_most: Largest share that may pass.
        trials: Every talk.
    """

    name: str
    verdict: Verdict
    flaky: bool
    share: Measured
    at_least: float
    at_most: float
    trials: tuple[Trial, ...] = ()

    @property
    def failures(self) -> list[Trial]:
        """Talks that do not pass."""
        return [trial for trial in self.trials if trial.problem or trial.ended]

    @property
    def target(self) -> str:
        """The share that is wanted, in percent."""
        low = f"{round(100 * self.at_least, 1):g}"
        high = f"{round(100 * self.at_most, 1):g}"
        if self.at_most < 1:
            return f"{low} to {high}"
        return low if self.at_least == 1 else f"{low} or more"


@dataclass(frozen=True, slots=True, repr=False)
class TestsResult(Result):
    """The results of a character's tests.

    Attributes:
        role: The role's name.
        language: The role's.
        assertions: In the order of the file.
        page: The page with every reply.
    """

    __test__ = False

    role: str
    language: Language
    assertions: tuple[AssertionResult, ...]
    page: Path | None = None

    @property
    def has_passed(self) -> bool:
        """True where every assertion passed."""
        return all(assertion.verdict == "passed" for assertion in self.assertions)

    @property
    def counts(self) -> dict[str, int]:
        """Number of assertions by verdict, and of flaky ones."""
        verdicts = [assertion.verdict for assertion in self.assertions]
        counts = {verdict: verdicts.count(verdict) for verdict in ("passed", "failed", "unscored")}
        return {**counts, "flaky": sum(assertion.flaky for assertion in self.assertions)}

    @property
    def sorted_assertions(self) -> list[AssertionResult]:
        """Assertions, those that failed first."""
        order = list(SIGNED)
        return sorted(self.assertions, key=lambda assertion: order.index(assertion.verdict))

    def remarks(self) -> list[str]:
        """Return how many assertions passed, which kinds failed or are unscored, and what is wrong with them."""
        kinds: dict[str, list[Verdict]] = {}
        for assertion in self.assertions:
            kind = assertion.name.partition(":")[0]
            kinds.setdefault(kind, []).append(assertion.verdict)
        total = format_count(len(self.assertions), "character test")
        summary = f"{self.counts['passed']} of {total} passed"
        titles: dict[Verdict, str] = {"failed": "failed", "unscored": "unscored, as replies are missing"}
        for verdict, title in titles.items():
            clauses = []
            for kind, verdicts in kinds.items():
                count = verdicts.count(verdict)
                if count:
                    clauses.append(f"{kind} {count} of {len(verdicts)}")
            if clauses:
                summary += f"; {title}: {', '.join(clauses)}"
        remarks = [f"{summary}."]
        for assertion in self.assertions:
            if assertion.verdict != "passed" and assertion.failures:
                first = assertion.failures[0]
                remarks.append(f"{assertion.name}: {first.problem or first.ended}")
        return remarks

    def tables(self) -> tuple[Table]:
        """Build the table of every assertion, those that failed first."""
        rows = []
        for assertion in self.sorted_assertions:
            cells = (assertion.share, assertion.target, SIGNED[assertion.verdict])
            marks = ("flaky",) if assertion.flaky else ()
            rows.append(TableRow((assertion.name,), cells, marks=marks))
        heads = ("Passes %", "Wanted %", "Verdict")
        return (Table(f"Tests of {self.role}", ("Assertion",), heads, tuple(rows), left=("Verdict",)),)


@dataclass(frozen=True)
class CheckCharacter(Step[TestsResult]):
    """Say what a test file says, and judge the replies.

    Attributes:
        settings: The tests, as `read_tests` reads them.
        only: Names of assertions; by default all.
    """

    settings: CharacterTests
    only: Collection[str] | None = None
    kind: ClassVar[str] = "character-tests"

    def plan(self, llm: LLM) -> Plan[TestsResult]:
        """Hold every talk, each as often as asked and no talk twice.

        Raises:
            SettingsError: For an unknown role, or a file that asserts nothing.
        """
        tests = self.settings
        player = RolePlayer(llm, tests.role, **dump(tests.play))
        assertions = list_assertions(tests, player.part)
        if self.only is not None:
            assertions = [assertion for assertion in assertions if assertion.name in self.only]
        sessions: dict[tuple[Talk, int], Session] = {}
        for assertion in assertions:
            for talk in assertion.talks:
                for repeat in range(tests.repeats):
                    if (talk, repeat) not in sessions:
                        sessions[talk, repeat] = Session(player, repeat, player.opening, talk)
        yield from hold_sessions(list(sessions.values()))
        noise = find_noise([reply for session in sessions.values() for reply in session.replies])
        results = [judge_assertion(assertion, sessions, tests.repeats, noise) for assertion in assertions]
        return TestsResult(player.role, player.part.sheet.language, tuple(results))

    def records(self, result: TestsResult) -> Records:
        """Return the assertions, with every talk."""
        return {"assertions.jsonl": result.to_dict()["assertions"]}

    def summarize(self, result: TestsResult) -> dict[str, Any]:
        """Return the counts, and the assertions without their talks."""
        assertions = [dump(replace(assertion, trials=())) for assertion in result.assertions]
        return {"role": result.role, "language": result.language, **result.counts, "assertions": assertions}


def judge_assertion(
    assertion: Assertion, sessions: Mapping[tuple[Talk, int], Session], repeats: int, noise: AbstractSet[str]
) -> AssertionResult:
    """Judge the replies to an assertion's talks.

    Args:
        assertion: What is asserted.
        sessions: The talks, by their messages and number.
        repeats: How often each talk was held.
        noise: Replies that are no language: they are not in the character's language, and leave any other assertion
            open.
    """
    trials: list[Trial] = []
    passes: dict[Talk, list[bool]] = {}
    unread = 0
    for talk in assertion.talks:
        for repeat in range(repeats):
            session = sessions[talk, repeat]
            ended = session.ended
            problem: str | None = None
            if not ended and not noise.isdisjoint(session.replies):
                if assertion.name == "keeps_its_language":
                    problem = NOISE
                else:
                    ended = NOISE
                    unread += 1
            elif not ended:
                other_talks = [sessions[text, repeat] for text in assertion.talks if text != talk]
                last_replies = [other_talk.replies[-1] for other_talk in other_talks if not other_talk.ended]
                problem = assertion.judge(talk, session.replies, last_replies)
            trials.append(Trial(talk, tuple(session.replies), problem, ended))
            if problem is not None:
                passes.setdefault(talk, []).append(not problem)
    share, verdict, is_flaky = _judge_passes(assertion, passes, unread)
    bounds = (assertion.at_least, assertion.at_most)
    return AssertionResult(assertion.name, verdict, is_flaky, share, *bounds, tuple(trials))


def _judge_passes(
    assertion: Assertion, passes: Mapping[Talk, Sequence[bool]], unread: int
) -> tuple[Interval | None, Verdict, bool]:
    """Return the share of talks that pass, the verdict, and whether the assertion is flaky."""
    results = [passed for talk_results in passes.values() for passed in talk_results]
    if not results:
        return None, "unscored", False
    low = assertion.at_least
    high = assertion.at_most
    hits = sum(results)
    total = len(results) + unread
    share = estimate_proportion(hits, len(results))
    # The talks that were not read may all fail, or all pass.
    passes_at_worst = low <= hits / total <= high
    passes_at_best = low <= (hits + unread) / total <= high
    verdict: Verdict = "unscored"
    if passes_at_worst == passes_at_best:
        verdict = "passed" if passes_at_worst else "failed"
    if assertion.name == _RATE:
        lowest, highest = share.ends or (0.0, 1.0)
        is_flaky = any(lowest < bound < highest for bound in (low, high))
    else:
        is_flaky = any(len(set(talk_results)) > 1 for talk_results in passes.values())
    return share, verdict, is_flaky


def locate_tests(sheet: Profile, folder: str | Path = ".") -> Path:
    """Return where a character's test file is."""
    return Path(folder) / f"{make_safe_name(sheet.role)}{ENDING}"


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
    path = locate_tests(sheet, folder)
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
