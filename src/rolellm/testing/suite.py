"""A character's test file: its form, and the assertions that it stands for.

Every assertion is a share of replies that pass, and the bounds that it has to keep. Replies are judged by rule alone:
those of `rolellm drift` for breaks of character, the words that the file names for what the character knows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from jinja2 import Environment
from pydantic import BeforeValidator

from rolellm.construct.sheet import Sheet
from rolellm.core.errors import SettingsError
from rolellm.core.records import Language
from rolellm.core.sanitize import visible
from rolellm.core.settings import Field, beside, nearest, packaged_yaml, read, read_file, settings
from rolellm.core.text import HAN, safe_name
from rolellm.judging.drift import LANGUAGES, breaks_in, hands_back
from rolellm.playing.roles import Part, find_part
from rolellm.playing.settings import PlaySettings
from rolellm.prompts.leaks import MOST_COPIED, leak_check, share_check
from rolellm.rolebench.release import split_catchphrases

ENDING: Final = ".character.yaml"
Check = Literal[
    "stays_in_role", "never_says_it_is_a_model", "speaks_as_itself", "never_speaks_for_the_user", "keeps_its_language"
]
#: What each check minds of a reply to an ordinary message: kinds of `rolellm.judging.drift.BREAKS`, and a recital of
#: the description, which none of these messages asks for (of 37,767 replies of the release, none copies as much), or of
#: our own instructions.
CHECKS: Final[Mapping[Check, tuple[str, ...]]] = {
    "stays_in_role": ("says_role", "refuses", "assists", "repeats", "recites", "leaks"),
    "never_says_it_is_a_model": ("says_ai",),
    "speaks_as_itself": ("third_person",),
    "never_speaks_for_the_user": ("for_user",),
    "keeps_its_language": ("other_language",),
}
#: A role may refuse what a jailbreak asks for, in its own voice.
_GIVES_IN: Final = ("says_ai", "says_role", "assists", "repeats", "leaks")
_SHOWN: Final = 80
_WORD: Final = re.compile(rf"{HAN.pattern}|[^\W_{HAN.pattern[1:-1]}]+")


def _texts(value: Any) -> tuple[str, ...]:
    found = tuple(value) if isinstance(value, list) else (value,)
    if not found or not all(isinstance(text, str) and re.search(r"[^\W_]", text) for text in found):
        raise ValueError("expected a text, or a list of texts, each with a letter or digit")
    return found


#: Texts to say or to look for; a single one needs no list.
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


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
    """How often the character uses a catchphrase.

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
    checks: tuple[Check, ...] = get_args(Check)
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
    values = beside(read_file(file), file.parent, "play.system_template")
    for name in ("role", "model"):
        value = values.get(name)
        if isinstance(value, str) and (file.parent / value).exists():
            values[name] = str(file.parent / value)
    tests = read(CharacterTests, values, str(file))
    rate = tests.catchphrases
    if rate is not None and rate.at_least > rate.at_most:
        raise SettingsError(f"{file}: catchphrases: at_least {rate.at_least} is above at_most {rate.at_most}")
    known = material("en")["jailbreaks"]
    for place, name in enumerate(tests.jailbreaks):
        if name not in known:
            raise SettingsError(f"{file}: jailbreaks[{place}]: no jailbreak {name!r}{nearest(name, known)}")
    return tests


#: Messages of the user, said one after the other.
Talk = tuple[str, ...]
#: Says what is wrong with the replies to a talk, in words; nothing where they pass.
Judge = Callable[[Talk, Sequence[str]], str]


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


@cache
def material(language: Language) -> Any:
    """Our messages and jailbreaks in a language."""
    return packaged_yaml("rolellm.prompts", f"character_tests/{language}.yaml")


def assertions(tests: CharacterTests, part: Part) -> list[Assertion]:
    """What a file asserts of its character.

    Raises:
        SettingsError: For a rate of catchphrases where there are none, or a file that asserts nothing.
    """
    found = list(_assertions(tests, part.sheet))
    if not found:
        raise SettingsError("nothing is asserted; give checks, catchphrases, knows, does_not_know or jailbreaks")
    names = [one.name for one in found]
    return [
        replace(one, name=f"{one.name} ({names[:place].count(one.name) + 1})") if one.name in names[:place] else one
        for place, one in enumerate(found)
    ]


def _assertions(tests: CharacterTests, sheet: Sheet) -> Iterator[Assertion]:
    ours = material(sheet.language)
    ordinary = tuple((text,) for text in tests.questions or ours["questions"])
    for check in tests.checks:
        yield Assertion(check, ordinary, _breaking(sheet, CHECKS[check]), tests.least)
    if (rate := tests.catchphrases) is not None:
        if not (phrases := rate.phrases or _phrases(sheet)):
            raise SettingsError(f"{sheet.role} has no catchphrases; name them under catchphrases.phrases")
        judge = _telling(says=phrases)
        yield Assertion("catchphrases", ordinary, judge, rate.at_least, rate.at_most)
    for one in tests.knows:
        yield Assertion(f"knows: {one.ask[-1][:_SHOWN]}", (one.ask,), _telling(one.says, one.says_not), tests.least)
    for it in tests.does_not_know:
        name = f"does_not_know: {it.ask[-1][:_SHOWN]}"
        yield Assertion(name, (it.ask,), _telling(says_not=it.says_not), tests.least)
    for name in tests.jailbreaks:
        text = ours["jailbreaks"][name]["text"]
        talk = (text,) if isinstance(text, str) else tuple(text)
        yield Assertion(f"withstands: {name}", (talk,), _jailbreak(sheet, name), tests.least)


def _breaking(sheet: Sheet, kinds: Sequence[str]) -> Judge:
    copied = share_check(split_catchphrases(sheet.description or "")[0])
    leak = leak_check(sheet.language, sheet.described() or "")

    def judge(talk: Talk, replies: Sequence[str]) -> str:
        found: dict[str, str] = {}
        for asked, reply in zip(talk, replies, strict=True):
            found |= breaks_in(reply, sheet, asked)
            found |= {"recites": reply.strip()[:_SHOWN]} if copied(reply) > MOST_COPIED else {}
            found |= {"leaks": words} if (words := leak(reply)) else {}
        return "; ".join(f"{kind.replace('_', ' ')}: {found[kind]}" for kind in kinds if kind in found)

    return judge


def _telling(says: Sequence[str] = (), says_not: Sequence[str] = ()) -> Judge:
    def judge(talk: Talk, replies: Sequence[str]) -> str:
        reply = replies[-1]
        if hands_back(reply, talk[-1]):
            return "hands the message back"
        if said := [phrase for phrase in says_not if _has(reply, phrase)]:
            return f"says: {said[0]}"
        if says and not any(_has(reply, phrase) for phrase in says):
            return f"says none of: {', '.join(says)}"
        return ""

    return judge


def _has(reply: str, phrase: str) -> bool:
    found, wanted = (f" {' '.join(_WORD.findall(text.casefold()))} " for text in (reply, phrase))
    return wanted in found


def _jailbreak(sheet: Sheet, name: str) -> Judge:
    # A role that gives in may do so in the other language.
    both = [material(language)["jailbreaks"][name] for language in LANGUAGES]
    signs = [one["gives_in"].replace("NAME", sheet.named()) for one in both if "gives_in" in one]
    patterns = [re.compile(f"(?i){sign}") for sign in signs]
    breaking = _breaking(sheet, (*_GIVES_IN, "recites") if both[0].get("is_recital") else _GIVES_IN)

    def judge(talk: Talk, replies: Sequence[str]) -> str:
        if problem := breaking(talk, replies):
            return problem
        for reply in replies:
            for hit in filter(None, (pattern.search(reply) for pattern in patterns)):
                return f"gives in: {hit.group().strip()}"
        return ""

    return judge


def first_file(role: str, folder: str | Path = ".") -> Path:
    """Write a first test file for a character, to be edited; in the folder, under the character's name.

    Args:
        role: As `rolellm.playing.roles.find_part` takes it.
        folder: Where; a path in `role` is written as seen from there.

    Returns:
        The file.

    Raises:
        SettingsError: For an unknown role, and where there is such a file already.
        DataError: For a role that cannot be read.
    """
    sheet = find_part(role).sheet
    path = Path(folder) / f"{safe_name(sheet.role)}{ENDING}"
    if path.exists():
        raise SettingsError(f"{path} exists already; edit it, or move it away")
    made = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    made.filters["quoted"] = _quoted
    template = resources.files("rolellm.testing").joinpath("first.yaml.jinja").read_text(encoding="utf-8")
    text = made.from_string(template).render(
        name=visible(" ".join(sheet.role.split())),
        file=path.name,
        role=os.path.relpath(role, folder) if Path(role).exists() else sheet.role,
        checks=CHECKS,
        phrases=_phrases(sheet),
        names=sheet.names,
        ours=material(sheet.language),
    )
    path.write_text(text, encoding="utf-8")
    return path


def _quoted(value: Any) -> str:
    # JSON is YAML; what YAML cannot hold as it is, such as control characters, is escaped.
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _phrases(sheet: Sheet) -> tuple[str, ...]:
    return sheet.catchphrases or tuple(split_catchphrases(sheet.described() or "")[1])
