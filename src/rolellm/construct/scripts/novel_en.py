"""Who speaks in English prose: by the words next to a quotation, by what its paragraph tells, or by turns.

A paragraph has one speaker, unless it says otherwise. Pronouns mean the last person named whom they fit; where two
people talk and nothing is said, they take turns. All of this is our own choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts.quotes import Attribution, Paragraph, Quotation
from rolellm.construct.scripts.reading import HONORIFICS, MENS_TITLES, OPENERS, OTHERS, WOMENS_TITLES, words_of

# Verbs that speak only where nothing else can be meant: ``he smiled`` after a full stop is an action.
_WEAK: Final = words_of(
    "laughed chuckled giggled grinned smiled sighed went goes broke pointed burst thought wondered noted read reads "
    "told tells thinks finished decided recalled pressed offered spoke sniffed snorted yawned"
)
_VERBS: Final = _WEAK | words_of(
    "said asked addressed replied answered cried exclaimed shouted whispered murmured muttered added continued began "
    "returned rejoined remarked observed declared demanded inquired enquired repeated responded called yelled "
    "screamed shrieked bellowed roared growled grunted snarled snapped barked hissed groaned moaned sobbed wailed "
    "gasped panted breathed stammered stuttered faltered mumbled grumbled complained protested objected argued "
    "insisted urged pleaded begged implored admitted confessed agreed assented conceded explained suggested proposed "
    "announced proclaimed commented persisted pursued proceeded resumed concluded interrupted interposed interjected "
    "retorted countered echoed chimed quoth ordered commanded instructed warned advised assured vowed mused reckoned "
    "ventured sneered scoffed mocked teased joked drawled croaked rasped squeaked chirped purred crooned sang recited "
    "prayed greeted apologised apologized corrected affirmed asserted maintained ejaculated thundered boomed spat "
    "fumed stormed blurted whimpered whined queried questioned hailed acknowledged says asks replies answers cries "
    "exclaims shouts whispers murmurs mutters adds continues begins calls laughs sighs insists admits agrees explains "
    "suggests announces snaps"
)
_VERB: Final = "(?i:" + "|".join(sorted(_VERBS, key=lambda word: (-len(word), word))) + ")"
_BEFORE_NAMES: Final = OTHERS | {"poor", "dear", "old", "the"}
_TITLE: Final = "(?:" + "|".join(sorted(word.capitalize() for word in HONORIFICS | _BEFORE_NAMES)) + r")\b\.?"
_CAPITAL: Final = r"[A-Z\u00c0-\u00de][\w\u2019'-]*\w|[A-Z]\.?(?=\s[A-Z])|[A-Z](?!\w)"
_NAME: Final = (
    rf"(?:M(?:rs?|iss)\.?\s+and\s+M(?:rs?|iss)\.?\s+|{_TITLE}\s+)*(?:{_CAPITAL})"
    rf"(?:\s+(?:(?:of\s+the|of|de\s+la|de|du|van|von|le|la|the)\s+)?(?:{_CAPITAL})){{0,4}}"
)
_NOUN: Final = (
    r"(?!(?:with|in|to|at|and|as|who|whose|which|that|from|by|for|on|upon|when|while|after|before|but|or|so|then|again|into|"
    r"through|over|looking|turning|without|if|because|still|once|almost|very|too|now|is|was|were|had|has|did|would|could|"
    rf"{_VERB})\b)[A-Za-z\u00c0-\u024f][\w\u2019'-]*"
)
# ``the old man``, ``his wife``, ``one of the boys``, ``the King of Hearts``; and ``Tom's mother``.
_DESCRIBED: Final = (
    r"(?:(?:one|another|some|all|both|two|three)\s+of\s+)?"
    r"(?i:the|an?|his|her|my|our|their|your|its|this|that|another|some|one|both|two|three)\s+"
    rf"{_NOUN}(?:\s+(?!\w+ly\b){_NOUN}){{0,3}}(?:\s+of\s+(?:the\s+)?[A-Z]\w+)?"
)
_OWNED: Final = rf"(?:{_TITLE}\s+)*(?:[A-Z][\w-]*\s+){{0,3}}[A-Z][\w-]*[’']s?\s+{_NOUN}(?:\s+(?!\w+ly\b){_NOUN}){{0,2}}"
_SUBJECT: Final = (
    r"(?:(?P<pronoun>(?i:he|she|they|it|we|you)|I)(?!\w|[’'])"
    rf"|(?P<owned>{_OWNED})|(?P<name>{_NAME})|(?P<described>{_DESCRIBED}|(?i:some(?:one|body)|every(?:one|body)|others?)\b))"
)
_ADVERBS: Final = (
    r"(?:(?:\w+ly|then|at\s+last|at\s+length|only|again|just|also|still|now|once|once\s+more|soon|always|never|had|has|have|"
    r"at\s+once|half|almost|would|could|did|all|both|even|too|in\s+turn|rather|quite|thus|here|there|first|next),?\s+){0,3}"
)
_INVERTED: Final = re.compile(rf"[\s,—–-]*(?:and\s+)?{_ADVERBS}(?P<verb>{_VERB})\s+{_ADVERBS}{_SUBJECT}")
_STRAIGHT: Final = re.compile(
    rf"[\s,;—–-]*(?:(?:and|but)\s+)?(?<!\w){_SUBJECT}(?:,[^,.!?]{{1,60}},)?\s+{_ADVERBS}(?P<verb>{_VERB})\b"
)
_BEGINNING: Final = re.compile(
    r"(?i:(?:(?:and|but|then|so|at\s+last|again|now|here|meanwhile|however|still|yet|soon|later|for|when|as|while|once|next|"
    rf"at\s+once|at\s+this|(?:after|for)\s+a\s+(?:moment|while|pause)|\w+ly)[,\s]+)*){_SUBJECT}"
)
_SPEAKS: Final = re.compile(rf"\b{_VERB}\b")
_STOP: Final = r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.!?]"
_LAST_SENTENCE: Final = re.compile(rf"(?:.*{_STOP}[’'\")\s]*\s)?(?P<sentence>\S.*)$", re.DOTALL)
_RUN: Final = re.compile(rf"(?<![\w.])(?:[Tt]he\s+(?=[A-Z]))?{_NAME}")
_ACTS: Final = re.compile(
    rf"(?:^|[.!?”\"’]\s+)(?P<name>(?:The\s+(?=[A-Z]))?{_NAME})\s+(?:\w+ly\s+)?"
    r"(?:was|had|came|went|stood|sat|took|gave|put|rose|ran|saw|knew|felt|shook|let|made|got|held|left|said|is|has|[a-z]+ed)\b",
    re.MULTILINE,
)
_GENDERED: Final = re.compile(r"\b(?:(?P<he>he|his|him|himself)|she|her|hers|herself)\b", re.IGNORECASE)
_CALLED: Final = re.compile(
    rf"(?:^|[,;.!?—–-]\s*)(?:(?i:my|oh,?)\s+)?(?:[Dd]ear(?:est)?\s+)?(?P<name>{_NAME})\s*(?=[,.!?;—–]|$)"
)
_WRITTEN: Final = re.compile(
    r"\b(?:sign|label|headline|inscription|notice|placard|title|motto|printed|written|engraved|inscribed|painted|wrote|ran|"
    r"reads?|signed)[:,]?$"
)
# Verbs whose object may be a quoted word: ``he called it``.
_MAY_NAME: Final = re.compile(r"\b(?:called|calls|reads?|thought|went|told|spoke|noted|sang)$")
_ENDED: Final = tuple(".,!?…—–-;:~")
_MALE: Final = MENS_TITLES | {"man", "boy", "gentleman", "husband", "son", "lad", "fellow", "grandfather", "master"}
_FEMALE: Final = WOMENS_TITLES | {"woman", "girl", "wife", "daughter", "nurse", "maid", "mother", "grandmother"}
_LONGEST_TAIL, _MOST_LATER = 300, 20


@dataclass(frozen=True, slots=True)
class _Cue:
    """Words that say who speaks: a name or description, or a pronoun for one."""

    name: str | None = None
    pronoun: str | None = None
    is_name: bool = False


def _cue_of(match: re.Match[str] | None) -> _Cue | None:
    """Whom a match of `_SUBJECT` names."""
    if match is None:
        return None
    if match["pronoun"]:
        return _Cue(pronoun=match["pronoun"].casefold())
    if match["name"]:
        name = _plain(match["name"])
        return _Cue(name, is_name=True) if name else None
    if match["owned"]:
        return _Cue(" ".join(match["owned"].split()))
    described = " ".join(match["described"].split())
    # ``the Rabbit`` is a name, ``the old man`` is none.
    return _Cue(described[0].lower() + described[1:], is_name=bool(re.match("[Tt]he [A-Z]", described)))


def _cue_after(tail: str, ending: str) -> _Cue | None:
    """The words after a quotation: ``said Alice``, ``the Rabbit cried``, ``he asked``."""
    inverted = _INVERTED.match(tail)
    if inverted and (inverted["verb"] not in _WEAK or ending in ",!?—–"):
        return _cue_of(inverted)
    straight = _STRAIGHT.match(tail)
    return (
        _cue_of(straight) if straight and ending != "." and (straight["verb"] not in _WEAK or ending == ",") else None
    )


def _cue_before(own: str, *, is_colon: bool) -> _Cue | None:
    """The words before a quotation: ``Alice said``, ``he turned to her and cried``, ``said the King``."""
    sentence = _sentence(own)
    verbs = [*_SPEAKS.finditer(sentence)]
    if not verbs and not is_colon:
        return None
    inverted = _INVERTED.match(sentence)
    if inverted and inverted.end() > len(sentence) - 40:
        return _cue_of(inverted)
    direct = [*_STRAIGHT.finditer(sentence)]
    if direct and verbs and direct[-1].end("verb") >= verbs[-1].start():
        return _cue_of(direct[-1])
    beginning = _BEGINNING.match(sentence)
    if beginning and (beginning["name"] or "").endswith("ing"):
        # ``Turning to the others, he``: no name, but what its subject does besides.
        beginning = re.search(rf",\s+{_SUBJECT}\s", sentence)
    return _cue_of(beginning)


def _sentence(told: str) -> str:
    """The last sentence of a passage."""
    found = _LAST_SENTENCE.match(told)
    return found["sentence"] if found else told


def _plain(text: str) -> str:
    """A run of capitalized words without those at its ends that are not part of a name; may be empty."""
    words = re.sub(r"[’']s?$", "", " ".join(text.split())).split()
    article = "the " if len(words) > 1 and words[0] in ("the", "The") else ""
    words = words[bool(article) :]
    while words and words[0].casefold() in OPENERS and not (len(words) > 1 and words[0].casefold() in _BEFORE_NAMES):
        words, article = words[1:], ""
    while words and words[-1].casefold() in OPENERS | {"of", "the", "de", "von", "van"}:
        words = words[:-1]
    return article + " ".join(words) if words else ""


def _words(name: str) -> set[str]:
    return {word.strip(".,").casefold() for word in name.split()}


class English(Attribution):
    """The rules for English."""

    def __init__(
        self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], given: Sequence[str]
    ) -> None:
        super().__init__(text, paragraphs, quotations)
        everything = range(len(self.quotations))
        self.recent: list[str] = []
        self.cues = [self._cue(index) for index in everything]
        called = Counter(
            _plain(match["name"])
            for index in everything
            for match in _CALLED.finditer(self.said(index)[:400])
            if match[0].startswith(",")
        )
        called.update(_plain(match["name"]) for match in _ACTS.finditer(text))
        names = {cue.name for cue in self.cues if cue is not None and cue.name is not None and cue.is_name}
        names |= {name for name, count in called.items() if count > 1 or " " in name}
        names |= {name[4:] for name in names if name.startswith("the ")}
        no_names = HONORIFICS | _MALE | _FEMALE | OTHERS | {""}
        self.names = {name for name in names if name.startswith("the ") or not _words(name) <= no_names} | {*given}
        self.parts = {part for name in self.names for part in name.split()}
        self.genders = {"he": Counter[str](), "she": Counter[str]()}
        for index in everything:
            self._count(self.gap(index), self.cues[index])

    def _count(self, told: str, cue: _Cue | None) -> None:
        """Count *he* and *she* in sentences that name one person, and in those that follow."""
        name = None
        for sentence in re.split(rf"{_STOP}|\n", told):
            found = {*self._mentions(sentence)}
            name = next(iter(found)) if len(found) == 1 else None if found else name
            for gendered in _GENDERED.finditer(sentence) if name is not None else ():
                self.genders["he" if gendered["he"] else "she"][name or ""] += 1
        if name is not None and cue is not None and cue.pronoun in self.genders:
            self.genders[cue.pronoun][name] += 2

    def _mentions(self, told: str) -> Iterator[str]:
        """The people named in a passage, in order."""
        for match in _RUN.finditer(told):
            words = _plain(match[0]).split()
            spans = ((first, size) for size in range(len(words), 0, -1) for first in range(len(words) - size + 1))
            parts = (" ".join(words[first : first + size]) for first, size in spans)
            if name := next((part for part in parts if part in self.names), None):
                yield name

    def _gender(self, name: str) -> str | None:
        """``he`` or ``she``; ``None`` where it is not known."""
        if _words(name) & _FEMALE:
            return "she"
        if _words(name) & _MALE:
            return "he"
        parts = [name, *name.split()] if " " in name else [name]
        he, she = (next((counts[part] for part in parts if counts[part]), 0) for counts in self.genders.values())
        return None if max(he, she) < 2 * min(he, she) or he == she else "he" if he > she else "she"

    def _cue(self, index: int) -> _Cue | None:
        own = self._own(index).strip()
        if own.endswith((":", ",", "—", "–", "-")) and (self.is_first(index) or re.search(rf"{_STOP}\s+\S", own)):
            cue = _cue_before(own.rstrip(":,—–-"), is_colon=own.endswith(":"))
            if cue is not None:
                return cue
        return _cue_after(self.tail(index)[:_LONGEST_TAIL], self.said(index)[-1:])

    def _own(self, index: int) -> str:
        """The narration before a quotation in its paragraph, or in the one before if that ends in a colon."""
        own, gap = self.own(index), self.gap(index).rstrip()
        if own or not gap.endswith(":"):
            return own
        return gap.rpartition("\n\n")[2]

    def is_spoken(self, quotation: Quotation, paragraph: Paragraph) -> bool:
        """Whether a quotation is speech."""
        said = self.text[quotation.start : quotation.end].strip()
        before = self.text[max(paragraph.start, quotation.left - 80) : quotation.left].rstrip()
        after = self.text[quotation.right : quotation.right + 80]
        if _WRITTEN.search(before):
            return False
        if not before or before[-1] in ".!?;—–-’\")…'”:,":
            is_whole = said.endswith(_ENDED) or not before or quotation.right >= paragraph.end
            return is_whole or before[-1] in ":," or bool(_INVERTED.match(after) or _STRAIGHT.match(after))
        is_sentence = said[:1].isupper()
        if re.search(rf"\b{_VERB}$", before) and (said.endswith(_ENDED) or is_sentence):
            return not _MAY_NAME.search(before) or said.endswith(("!", "?"))
        return said.endswith(tuple("!?.,—")) and is_sentence and len(said.split()) > 3

    def speaker(self, index: int) -> str | None:
        """Who speaks a quotation."""
        self.recent = [*(self.recent[-6:] if self.spoken else ()), *self._mentions(self.gap(index))]
        cue, is_first = self.cues[index], self.is_first(index)
        if cue is None and (self.quotations[index].is_resumed or not is_first):
            return self.last()
        cue = cue or self._later(index)
        if cue is not None:
            return cue.name or self._meant(cue.pronoun or "", index)
        own = self._own(index).strip()
        told = self._acting(_sentence(own), index) if own else None
        told = told or self._acting(self.tail(index)[:_LONGEST_TAIL].strip(), index)
        return told if told or own else self.takes_turn(index)

    def _later(self, index: int) -> _Cue | None:
        """What is said of the next quotations of the same paragraph."""
        for following in range(index + 1, min(len(self.quotations), index + _MOST_LATER)):
            if self.is_first(following) or self.cues[following] is not None:
                return None if self.is_first(following) else self.cues[following]
        return None

    def _meant(self, pronoun: str, index: int) -> str | None:
        """Whom a pronoun next to a quotation means."""
        if pronoun not in ("he", "she"):
            return "I" if pronoun == "i" else None
        last, fits = self.last(), (None, pronoun)
        is_first = self.is_first(index) and not self.quotations[index].is_resumed
        if not is_first and last is not None and self._gender(last) in fits:
            return last
        if own := next((name for name in self._mentions(self._own(index)) if self._gender(name) in fits), None):
            return own
        called = self.called(index)
        if follows := last is not None and self.paragraph_of(index) - self.paragraph_of(index - 1) <= 1:
            called.append(last or "")
        spoken = [name for name in (self.partner(), last) if name is not None]
        told = [*reversed(self.recent)]
        candidates = [*self.addressed, *spoken[:1], *told, *spoken[1:]] if follows else [*told, *spoken]
        others = [name for name in candidates if not any(self.is_same(name, other) for other in called)]
        genders = [self._gender(name) for name in others]
        if pronoun in genders:
            return others[genders.index(pronoun)]
        unknown = next((name for name, gender in zip(others, genders, strict=True) if gender is None), None)
        if follows and last is not None and self._gender(last) == pronoun:
            return None if unknown else last
        return unknown

    def _acting(self, told: str, index: int) -> str | None:
        """Who acts in the narration next to a quotation: the subject with which it begins."""
        beginning = _BEGINNING.match(told)
        cue = _cue_of(beginning)
        if beginning is None or cue is None or cue.name is None:
            return self._meant(cue.pronoun or "", index) if cue else None
        if beginning["owned"] or told[beginning.end() :].startswith(("’", "'")):
            return None
        name = _plain(cue.name)
        return cue.name if name in self.names or name.removeprefix("the ") in self.names else None

    def called(self, index: int) -> list[str]:
        """The people that a quotation calls by name."""
        found = dict.fromkeys(_plain(match["name"]) for match in _CALLED.finditer(self.said(index)[:400]))
        return [name for name in found if name.split()[-1:] and name.split()[-1] in self.parts]

    def is_same(self, name: str, other: str) -> bool:
        """Whether two names share their parts, as ``Holmes`` and ``Mr. Holmes`` do."""
        one, two = (_words(each) - HONORIFICS - _BEFORE_NAMES for each in (name, other))
        return bool(one and two) and (one <= two or two <= one)
