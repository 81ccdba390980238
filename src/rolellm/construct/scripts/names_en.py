"""The people of an English novel: their names, whether *he* or *she* is said of them, and who is spoken to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rolellm.construct.scripts import words_en as words

_NAME = re.compile(rf"(?<![\w.])(?:[Tt]he\s+(?=[A-Z]))?(?:{words.NAME})")
_SENTENCE = re.compile(r"[^.!?\n]+(?:(?<=Mr|Dr|St|Ms)\.[^.!?\n]+|(?<=Mrs)\.[^.!?\n]+)*")
_POSSESSIVE = re.compile(r"[’']s?$")
_GENDERED = re.compile(r"\b(?:(?P<he>he|his|him|himself)|(?P<she>she|her|hers|herself))\b", re.IGNORECASE)
_VOCATIVE = re.compile(
    rf"(?:^|[,;.!?—–-]\s*)(?:[Mm]y\s+|[Oo]h,?\s+|O\s+)?(?:[Dd]ear(?:est)?\s+)?(?P<name>{words.NAME})\s*(?=[,.!?;—–]|$)"
)
_ACTS = re.compile(
    rf"(?:^|[.!?\n]\s*)(?P<name>(?:[Tt]he\s+(?=[A-Z]))?{words.NAME})\s+(?:\w+ly\s+)?(?:was|had|came|went|stood|sat|took|gave|put|rose|ran|saw|knew|"
    r"felt|turned|looked|shook|let|made|got|held|kept|left|fell|threw|stopped|nodded|is|has|[a-z]+ed)\b"
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A person named in narration.

    Attributes:
        name: As written there.
        place: Where, counted in the passage.
    """

    name: str
    place: int


class People:
    """Everybody who is named in a text.

    Args:
        names: The names under which people speak, and those given.
        he: How often *he* is said of each.
        she: How often *she* is said of each.
    """

    def __init__(self, names: Iterable[str], he: Counter[str], she: Counter[str]) -> None:
        self.names = frozenset(names)
        self._he, self._she = he, she
        self._by_last: dict[str, set[str]] = {}
        for name in self.names:
            for part in name.split():
                self._by_last.setdefault(part, set()).add(name)

    def mentions(self, passage: str) -> Iterator[Mention]:
        """The people named in a passage, in order."""
        for match in _NAME.finditer(passage):
            name = known_name(match.group())
            for candidate, offset in _parts(name):
                if candidate in self.names:
                    yield Mention(candidate, match.start() + offset)
                    break

    def gender(self, name: str) -> str | None:
        """``he`` or ``she``; ``None`` where it is not known."""
        titles = {word.strip(".").casefold() for word in re.findall(r"[A-Za-z]+\.?", name)}
        if titles & words.FEMALE:
            return "she"
        if titles & words.MALE:
            return "he"
        parts = [name, *name.split()] if " " in name else [name]
        he, she = (next((counts[part] for part in parts if counts[part]), 0) for counts in (self._he, self._she))
        if max(he, she) > 2 * min(he, she) + 3:
            return "he" if he > she else "she"
        first = name.split()[0].casefold()
        if first in words.MEN:
            return "he"
        if first in words.WOMEN:
            return "she"
        if he >= 2 * she and he > 0:
            return "he"
        return "she" if she >= 2 * he and she > 0 else None

    def fits(self, name: str, pronoun: str) -> bool:
        """Whether a pronoun may stand for a name."""
        gender = self.gender(name)
        return gender is None or gender == pronoun

    def addressed(self, said: str) -> set[str]:
        """The people spoken to by name."""
        found = set()
        for match in _VOCATIVE.finditer(said[:400]):
            name = known_name(match["name"])
            if name in self.names or (name.split()[-1:] and name.split()[-1] in self._by_last):
                found.add(name)
        return found

    def is_same(self, name: str, other: str) -> bool:
        """Whether two names share their parts, as ``Holmes`` and ``Mr. Holmes`` do."""
        one, two = {*_bare(name)}, {*_bare(other)}
        return bool(one and two) and (one <= two or two <= one)


def _parts(name: str) -> Iterator[tuple[str, int]]:
    yield name, 0
    if name.startswith(("the ", "The ")):
        yield name[4:], 4
    words_of = name.split()
    for count in range(len(words_of) - 1, 0, -1):
        yield " ".join(words_of[:count]), 0
    for first in range(1, len(words_of)):
        rest = " ".join(words_of[first:])
        yield rest, name.find(rest)


def _bare(name: str) -> list[str]:
    return [
        word.strip(".,").casefold()
        for word in name.split()
        if word.strip(".,").casefold()
        not in ("the", "old", "young", "mr", "mrs", "miss", "ms", "dr", "sir", "lady", "lord", "little", "poor")
    ]


def known_name(text: str) -> str:
    """A run of capitalised words without what is no name at its beginning or end; empty where nothing is left."""
    parts = _POSSESSIVE.sub("", " ".join(text.split())).split()
    article = ""
    if parts and parts[0] in ("the", "The") and len(parts) > 1:
        article, parts = "the ", parts[1:]
    while parts and parts[0] in words.COMMON and not (len(parts) > 1 and parts[0].strip(".").casefold() in _TITLES):
        parts = parts[1:]
        article = ""
    while parts and (parts[-1] in words.COMMON or parts[-1].casefold() in ("of", "the", "de", "von", "van")):
        parts = parts[:-1]
    return article + " ".join(parts) if parts else ""


_TITLES = frozenset({"old", "young", "poor", "little", "dear", "mr", "mrs", "ms", "miss", "sir", "lady", "lord"})


def learn_people(cues: Iterable[str], passages: Sequence[tuple[str, str, str | None]], given: Iterable[str]) -> People:
    """The people of a text, from who speaks in it, who is spoken to, and who acts.

    Args:
        cues: Names that stand beside a verb of speech.
        passages: Before each quotation: the narration, then what is said, and ``he`` or ``she`` if that says it.
        given: Names that are known.
    """
    names = {name for name in map(known_name, cues) if name} | {name for name in given if name}
    called = Counter(name for _, said, _ in passages for name in _called(said))
    acting = Counter(name for told, _, _ in passages for name in _acting(told))
    names |= {
        name
        for name, count in (called + acting).items()
        if count > 1 or called[name] or " " in name or name.casefold() in words.MEN | words.WOMEN
    }
    names |= {name[4:] for name in names if name.startswith("the ")}
    names = {name for name in names if not is_title(name)} | {*given}
    people = People(names, Counter(), Counter())
    counts = {"he": Counter[str](), "she": Counter[str]()}
    for told, _, pronoun in passages:
        name = None
        for match in _SENTENCE.finditer(told):
            found = {mention.name: mention.place for mention in people.mentions(match.group())}
            if len(found) == 1:
                name = next(iter(found))
            start = found.get(name, 0) if name is not None else 0
            if name is not None and len(found) <= 1:
                for gendered in _GENDERED.finditer(match.group(), start):
                    counts["he" if gendered["he"] else "she"][name] += 1
            if len(found) > 1:
                name = None
        if name is not None and pronoun in counts:
            counts[pronoun][name] += 2
    return People(names, counts["he"], counts["she"])


def is_title(name: str) -> bool:
    """Whether a name is nothing but titles, as ``Sir`` or ``the King``'s ``King`` without its article."""
    return not name.startswith("the ") and all(word.strip(".").casefold() in words.TITLES for word in name.split())


def _called(said: str) -> Iterator[str]:
    for match in _VOCATIVE.finditer(said[:400]):
        # At the beginning it may be any word; after a comma it is somebody.
        if match.group().startswith(","):
            name = known_name(match["name"])
            if name and not is_title(name):
                yield name


def _acting(told: str) -> Iterator[str]:
    for match in _ACTS.finditer(told):
        name = known_name(match["name"])
        if name:
            yield name
