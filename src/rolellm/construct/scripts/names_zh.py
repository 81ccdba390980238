"""The names of a Chinese novel, and the subject at the beginning of a clause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rolellm.construct.scripts import words_zh as words

CLAUSE = re.compile(r"[^，。！？；：:,!?;\n…—“”\"「」『』（）()]+")
_SENTENCE_END = '。！？!?…\n“”"」』'
_LINKS = "与和同、及并跟"
_MARKS_OBJECT = "对向朝冲与和跟同问叫骂怨唤谓教令命把将被望劝扯揪定着住见给"
_NO_PREFIX = words.FOLLOWS | words.NEVER | words.NEVER_FIRST | frozenset(_MARKS_OBJECT + _LINKS)
_ENDS_GROUP = words.FOLLOWS | frozenset("俱齐皆各拍鼓称自尽同慢慌丢")
_ACTS = words.FOLLOWS - frozenset("将大")
_STOPS = _NO_PREFIX | {""}
_LONGEST_PREFIX = 4
# A clause is looked at at its beginning and its end only.
_LONGEST_CLAUSE = 60
_CALLED = re.compile(r"\s*(?P<name>[\u4e00-\u9fff]{2,4})[，！,!]")
_FAMILIAR = re.compile(r"[老小阿][\u4e00-\u9fff]")
# How often something must begin sentences to be taken for somebody: our choice.
_OFTEN = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a clause.

    Attributes:
        kind: A ``name``, a ``group``, a ``pronoun``, ``somebody`` whose name is not known, the ``agent`` of a
            passive, or a ``stranger``, who comes in and is not named here.
        text: As the text has it.
        is_several: Whether it means more than one.
    """

    kind: Literal["name", "group", "pronoun", "somebody", "agent", "stranger"]
    text: str
    is_several: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of narration.

    Attributes:
        text: Without the marks around it.
        is_initial: Whether a sentence begins with it.
    """

    text: str
    is_initial: bool


def clauses(text: str) -> list[Clause]:
    """The clauses of a passage that follows the end of a sentence."""
    found: list[Clause] = []
    for match in CLAUSE.finditer(text):
        clause = match.group().strip(" 　-")
        if clause:
            place = match.start()
            is_initial = place == 0 or text[place - 1] in _SENTENCE_END or _only_says_when(found)
            if len(clause) > _LONGEST_CLAUSE:
                clause = clause[: 2 * _LONGEST_CLAUSE // 3] + clause[-_LONGEST_CLAUSE // 3 :]
            found.append(Clause(clause, is_initial))
    return found


def _only_says_when(before: list[Clause]) -> bool:
    return bool(before) and before[-1].is_initial and bool(words.WHEN.search(before[-1].text))


class Names:
    """The names of a text, found by the longest first.

    Args:
        names: All of them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def at(self, text: str, place: int = 0) -> str | None:
        """The longest name that stands at a place of a text."""
        for length in self._lengths:
            name = text[place : place + length]
            if name in self._names and (length > 1 or text[place + 1 : place + 2] in words.FOLLOWS):
                return name
        return None

    def objects(self, clause: str) -> list[str]:
        """The names that are spoken to, looked at, or dealt with in a clause."""
        found = []
        for place, character in enumerate(clause):
            if character in _MARKS_OBJECT:
                start = place + 1
                start += len(clause[start:]) - len(words.without_pointer(clause[start:]))
                name = self.at(clause, start)
                if name:
                    found.append(name)
        return found

    def subject(self, clause: str, *, is_cue: bool = False, is_initial: bool = False) -> Subject | None:
        """Who a clause is about, by what it begins with; ``None`` where it goes on about someone named before.

        Args:
            clause: Without the verb of speech, where it brings in a quotation.
            is_cue: Whether it brings in a quotation; then what nobody knows may be a name, too.
            is_initial: Whether a sentence begins with it.
        """
        stripped, is_passive = words.without_lead(clause)
        if not stripped or words.ASIDE.match(stripped):
            return None
        pronoun = words.PRONOUNS.match(stripped)
        if pronoun and stripped[pronoun.end() :][:1] not in ("的", "之"):
            return Subject("pronoun", pronoun.group(), pronoun.group()[-1] == "们" or "俩" in pronoun.group())
        if words.ANYBODY.match(clause):
            return Subject("somebody", "有人")
        core = words.without_pointer(stripped)
        appears = words.APPEARS.search(stripped)
        if appears and (found := self._appearing(appears)):
            return found
        if (met := words.MET.match(clause)) and (found := self._met(met["noun"])):
            return found
        named = self._named(core, is_cue)
        if named:
            if len(named.text) == 1:
                named = replace(named, text=stripped[: len(stripped) - len(core)] + named.text)
            return replace(named, kind="agent") if is_passive else named
        if group := words.GROUP.match(stripped):
            return Subject("group", _group(group), is_several=True)
        if made := words.MADE.match(clause):
            return self._named(words.without_pointer(made["whom"]), is_cue=False)
        if core != stripped and (pointed := _pointed_at(core)):
            return Subject("somebody", stripped[: len(stripped) - len(core)] + pointed)
        if not is_cue:
            return Subject("stranger", "") if words.COMES_IN.match(clause) else None
        return self._unknown(stripped, is_initial, is_led_in=clause[: -len(stripped)][-1:] in tuple("有见闻得出"))

    def _appearing(self, appears: re.Match[str]) -> Subject | None:
        noun = words.without_pointer(appears["noun"])
        if appears["surely"] or appears["counted"] or self.at(noun) == noun:
            return Subject("somebody", noun, "、" in noun or _is_several(appears["counted"] or noun))
        return None

    def _met(self, noun: str) -> Subject | None:
        for place in range(len(noun) - 1):
            name = self.at(noun, place)
            if name:
                return Subject("name", name, _is_several(name))
        noun = noun.rpartition("的")[2]
        return Subject("somebody", noun) if words.PERSON.search(noun) and words.could_be_name(noun) else None

    def _named(self, core: str, is_cue: bool) -> Subject | None:
        start = 0
        name = self.at(core)
        while name is None and start < _LONGEST_PREFIX and core[start : start + 1] not in _STOPS:
            start += 1
            name = self.at(core, start)
        if name is None or (start and not words.without_manner(core[:start])):
            return None
        end = start + len(name)
        rest = core[end:]
        if rest[:1] in ("的", "之"):
            owned = words.without_manner(core)
            return Subject("somebody", owned) if is_cue and _is_owned(owned) else None
        if title := words.title_of(rest):
            return Subject("name", core[: end + len(title)])
        if rest[:1] and rest[0] in _LINKS:
            other = self.at(rest, 1)
            if other:
                return Subject("name", core[: end + 1 + len(other)], is_several=True)
            if rest[0] == "、":
                return Subject("group", words.without_manner(core), is_several=True)
        return Subject("name", core[:end], _is_several(core[:end]))

    def _unknown(self, stripped: str, is_initial: bool, is_led_in: bool) -> Subject | None:
        core = words.without_pointer(stripped)
        text = words.without_manner(core)
        if is_initial and _is_owned(text):
            return Subject("somebody", text)
        parts = re.split(f"[{_LINKS}]", text)
        if not text or not all(part and words.could_be_name(part) for part in parts):
            return None
        is_pointed = core != stripped or is_led_in
        if not (is_pointed or (is_initial and all(map(_is_short_of_verbs, parts)))):
            return None
        if len(text) == 1:
            text = stripped[: len(stripped) - len(core)] + text
        return Subject("somebody", text, len(parts) > 1 or _is_several(text))


def _group(match: re.Match[str]) -> str:
    noun = match["noun"]
    end = next((place for place, character in enumerate(noun) if character in _ENDS_GROUP), len(noun))
    return match.group()[: len(match.group()) - len(noun) + end]


def _pointed_at(core: str) -> str | None:
    """The noun after ``那`` or ``这`` where it means a person."""
    end = next(
        (place for place, character in enumerate(core[:6]) if place and character in _ENDS_GROUP), min(6, len(core))
    )
    noun = core[:end]
    return noun if len(noun) > 1 and words.PERSON.search(noun) and words.could_be_name(noun) else None


def _is_several(name: str) -> bool:
    return name[0] in "众群诸各两二三四五六七八九十百千" or name[-1] == "们"


def _is_short_of_verbs(text: str) -> bool:
    text = words.without_title(text)
    if len(text) == 1:
        return text not in words.FOLLOWS
    inner = text[2 if len(text) < 4 else 1 :].removesuffix("将")
    return len(text) > 1 and not words.FOLLOWS & {*inner}


def _is_owned(text: str) -> bool:
    """Whether it is somebody's somebody: ``小明的妈妈``."""
    owner, _, owned = text.rpartition("的")
    if not (2 <= len(owner) <= 5 and 2 <= len(owned) <= 4) or not all(map(words.could_be_name, (owner, owned))):
        return False
    return bool(words.PERSON.search(owned) or words.title_of(owned))


def learn_names(
    cues: Iterable[tuple[str, bool]], narration: Iterable[str], said: Iterable[str], given: Iterable[str]
) -> Names:
    """Names from the text: who speaks twice, who speaks once under a name of its own, who begins many sentences.

    Args:
        cues: Clauses without their verb of speech, each with whether a sentence begins with it.
        narration: Clauses with which sentences begin.
        said: What is said; it may begin with whom it is said to.
        given: Names that are known.
    """
    speaking: Counter[str] = Counter()
    initial: set[str] = set()
    for clause, is_initial in cues:
        name = words.without_manner(_core(clause)).rstrip("闻听")
        if words.could_be_name(name) and not words.PRONOUNS.match(name):
            speaking[name] += 1
            if is_initial:
                initial.add(name)
    acting = Counter(name for clause in narration for name in _actors(_core(clause)))
    called = {match["name"] for match in map(_CALLED.match, said) if match}
    known = {name for name, count in speaking.items() if count > 1 and (len(name) > 1 or count > 2 or name == "众")}
    known |= {name for name, count in acting.items() if count >= _OFTEN or (count > 1 and name in speaking)}
    known |= {name for name in acting if name in called or _FAMILIAR.fullmatch(name)}
    known |= {name for name in given if name}
    often = Names(known)
    once = {
        name
        for name, count in speaking.items()
        if count == 1 and (name in initial or name in acting) and _is_short_of_verbs(name) and not often.at(name)
    }
    return Names(known | once)


def _core(clause: str) -> str:
    return words.without_pointer(words.without_lead(clause)[0])


def _actors(core: str) -> Iterable[str]:
    """What may be the subject at the beginning of a clause: followed by what often follows a subject."""
    for length in (2, 3, 4):
        name = core[:length]
        if core[length : length + 1] in _ACTS and words.could_be_name(name) and not words.FOLLOWS & {*name}:
            yield name
