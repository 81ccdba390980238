"""Who speaks in English prose: by the words beside a quotation, by what its paragraph tells, or by turns.

A paragraph has one speaker, unless it says otherwise. Pronouns stand for the last one named whom they fit; where two
people talk and nothing is said, they take turns. All of this is our own choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rolellm.construct.scripts.attribution import Verdict, verdicts
from rolellm.construct.scripts.chapters import Paragraph
from rolellm.construct.scripts.cues_en import BEGINNING, LAST_SENTENCE, Cue, cue_after, cue_before, is_spoken
from rolellm.construct.scripts.names_en import People, known_name, learn_people
from rolellm.construct.scripts.quotes import Quotation
from rolellm.construct.scripts.reading import Hints
from rolellm.construct.scripts.surroundings import Surroundings

_SENTENCES = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.!?]\s+\S")
_REACH_LATER, _LONGEST_EXCHANGE, _LONGEST_TAIL = 20, 20, 300


@dataclass(slots=True)
class _Exchange:
    """Who has spoken in a scene, by paragraphs."""

    number: int
    speakers: list[str | None] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    addressed: set[str] = field(default_factory=set)
    recent: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    guessed: int = 0

    def last(self) -> str | None:
        return self.speakers[-1] if self.speakers else None

    def partner(self) -> str | None:
        """The other one of the two who speak."""
        last = self.last()
        return next((name for name in reversed(self.speakers[-6:-1]) if name is not None and name != last), None)


def attribute_en(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
) -> list[Verdict]:
    """A verdict on each quotation of an English text.

    Args:
        text: The text.
        paragraphs: Its paragraphs.
        quotations: Its quotations, in order.
        hints: `names` are looked for in the narration, even if they never stand beside a verb of speech.
    """
    spoken = [is_spoken(text, paragraphs, quotation) for quotation in quotations]
    kept = [quotation for quotation, is_spoken in zip(quotations, spoken, strict=True) if is_spoken]
    return verdicts(spoken, _Attribution(text, paragraphs, kept, hints).speakers())


class _Attribution(Surroundings):
    """Goes through the spoken quotations of a text in order."""

    def __init__(
        self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
    ) -> None:
        super().__init__(text, paragraphs, quotations)
        everything = range(len(quotations))
        self.cues = [self._cue(index) for index in everything]
        self.people: People = learn_people(
            (cue.name for cue in self.cues if cue is not None and cue.name is not None and cue.is_name),
            [(self.gap(index), self.said(index).strip(), _gender(self.cues[index])) for index in everything],
            hints.names,
        )

    def speakers(self) -> list[str | None]:
        """One for each quotation; ``None`` where nobody could be found."""
        found: list[str | None] = []
        exchange = _Exchange(-1)
        for index, quotation in enumerate(self.quotations):
            number = self.scene(index)
            if number != exchange.number:
                exchange = _Exchange(number)
            exchange.recent = [
                *exchange.recent[-6:],
                *(mention.name for mention in self.people.mentions(self.gap(index))),
            ]
            speaker = self._speaker(index, exchange)
            found.append(speaker)
            said = self.people.addressed(self.said(index).strip())
            exchange.called = [*exchange.called[-5:], *sorted(said)]
            if exchange.places and (exchange.places[-1] == quotation.paragraph or quotation.is_resumed):
                exchange.speakers[-1] = speaker
                exchange.places[-1] = quotation.paragraph
                exchange.addressed |= said
            else:
                exchange.speakers.append(speaker)
                exchange.places.append(quotation.paragraph)
                exchange.addressed = said
        return found

    def _own(self, index: int) -> str:
        quotation = self.quotations[index]
        paragraph = self.paragraphs[quotation.paragraph]
        if paragraph.start == quotation.left and quotation.paragraph and index and not quotation.is_resumed:
            before = self.paragraphs[quotation.paragraph - 1]
            if self.text[before.end - 1] == ":" and not before.is_heading:
                paragraph = before
        return self.text[max(paragraph.start, self.begin(index)) : quotation.left]

    def _is_first(self, index: int) -> bool:
        """Whether a quotation is the first of its paragraph."""
        return not index or self.quotations[index - 1].paragraph != self.quotations[index].paragraph

    def _cue(self, index: int) -> Cue | None:
        own = self._own(index).strip()
        if own.endswith((":", ",", "—", "–", "-")) and (self._is_first(index) or _SENTENCES.search(own)):
            cue = cue_before(own.rstrip(":,—–-"), is_colon=own.endswith(":"))
            if cue is not None:
                return cue
        return cue_after(self.tail(index)[:_LONGEST_TAIL], self.said(index).strip()[-1:])

    def _speaker(self, index: int, exchange: _Exchange) -> str | None:
        quotation, cue = self.quotations[index], self.cues[index]
        if quotation.is_resumed and cue is None:
            return exchange.last()
        is_first = self._is_first(index)
        if cue is not None and cue.name is not None:
            exchange.guessed = 0
            return self._full(cue.name)
        if cue is not None and cue.pronoun is not None:
            exchange.guessed = 0
            return self._meant(cue.pronoun.casefold(), index, exchange)
        if not is_first:
            return exchange.last()
        later = self._later(index)
        if later is not None and later.name is not None:
            exchange.guessed = 0
            return self._full(later.name)
        if later is not None and later.pronoun is not None:
            return self._meant(later.pronoun.casefold(), index, exchange)
        own = self._own(index).strip()
        told = self._acting(own, index, exchange, is_last=True)
        told = told or (self._acting(self.tail(index)[:_LONGEST_TAIL].strip(), index, exchange, is_last=False))
        if told is not None:
            exchange.guessed = 0
            return told
        return None if own else self._taking_turns(index, exchange)

    def _later(self, index: int) -> Cue | None:
        """What is said of the next quotations of the same paragraph."""
        following = index + 1
        while following < min(len(self.quotations), index + _REACH_LATER) and not self._is_first(following):
            if self.cues[following] is not None:
                return self.cues[following]
            following += 1
        return None

    def _full(self, name: str) -> str:
        return " ".join(name.split())

    def _meant(self, pronoun: str, index: int, exchange: _Exchange) -> str | None:
        """Whom a pronoun beside a quotation stands for."""
        if pronoun == "i":
            return "I"
        if pronoun not in ("he", "she"):
            return None
        last = exchange.last()
        goes_on = self.quotations[index].is_resumed or not self._is_first(index)
        if goes_on and last is not None and self.people.fits(last, pronoun):
            return last
        for mention in self.people.mentions(self._own(index)):
            if self.people.fits(mention.name, pronoun):
                return mention.name
        addressed = self.people.addressed(self.said(index).strip())
        is_adjacent = self._is_adjacent(index, exchange)
        candidates = [
            name
            for name in self._candidates(exchange, is_adjacent)
            if not any(self.people.is_same(name, other) for other in addressed)
        ]
        others = [
            name for name in candidates if not (is_adjacent and last is not None and self.people.is_same(name, last))
        ]
        known = next((name for name in others if self.people.gender(name) == pronoun), None)
        if known is not None:
            return known
        unknown = [name for name in others if self.people.gender(name) is None]
        if is_adjacent and last is not None and self.people.gender(last) == pronoun:
            return None if unknown else last
        return self._remembered(pronoun, exchange, last if is_adjacent else None) or next(iter(unknown), None)

    def _candidates(self, exchange: _Exchange, is_adjacent: bool) -> list[str]:
        told = [*reversed(exchange.recent)]
        spoken = [name for name in (exchange.partner(), exchange.last()) if name is not None]
        if not is_adjacent:
            return [*told, *reversed(spoken)]
        # ``a voice`` may be anybody's; whoever was named beside it is likelier.
        vague = [name for name in spoken if name.split()[0] in ("a", "an", "one", "another", "someone", "somebody")]
        named = [name for name in spoken if name not in vague]
        return [*exchange.addressed, *named[:1], *told, *named[1:], *vague]

    def _remembered(self, pronoun: str, exchange: _Exchange, but: str | None) -> str | None:
        for name in (*reversed(exchange.called), *reversed(exchange.speakers[-12:])):
            if name is not None and name != but and self.people.gender(name) == pronoun:
                return name
        return None

    def _acting(self, told: str, index: int, exchange: _Exchange, *, is_last: bool) -> str | None:
        """Who acts in the narration beside a quotation: the subject of its nearest sentence."""
        if not told:
            return None
        if is_last:
            found = LAST_SENTENCE.match(told)
            told = found["sentence"] if found else told
        beginning = BEGINNING.match(told)
        if beginning is None:
            return None
        if beginning["pronoun"]:
            pronoun = beginning["pronoun"].casefold()
            return "I" if pronoun == "i" else self._meant(pronoun, index, exchange)
        if beginning["name"]:
            name = known_name(beginning["name"])
            rest = told[beginning.end("name") :]
            if name in self.people.names and not rest.startswith(("’s", "'s", "’ ", "' ")):
                return name
        if beginning["described"] and not beginning["owned"]:
            name = known_name(beginning["described"])
            if name in self.people.names or name[4:] in self.people.names:
                return " ".join(beginning["described"].split())
        return None

    def _is_adjacent(self, index: int, exchange: _Exchange) -> bool:
        return bool(exchange.places) and self.quotations[index].paragraph - exchange.places[-1] <= 1

    def _taking_turns(self, index: int, exchange: _Exchange) -> str | None:
        if not self._is_adjacent(index, exchange) or exchange.guessed >= _LONGEST_EXCHANGE:
            return None
        last, candidate = exchange.last(), exchange.partner()
        if candidate is not None and last is not None and _is_related(candidate) and _is_related(last):
            # ``his wife`` and ``his lady`` may be one; whoever was spoken to is somebody else.
            candidate = next(reversed(exchange.called), None)
        if len(exchange.addressed) == 1:
            called = next(iter(exchange.addressed))
            if candidate is None or not self.people.is_same(called, candidate):
                candidate = called
        if candidate is None or last is None or self.people.is_same(candidate, last):
            return None
        if any(self.people.is_same(candidate, name) for name in self.people.addressed(self.said(index).strip())):
            return None
        exchange.guessed += 1
        return candidate


def _is_related(name: str) -> bool:
    return name.split()[0] in ("his", "her", "my", "their", "our", "your")


def _gender(cue: Cue | None) -> str | None:
    return cue.pronoun.casefold() if cue is not None and cue.pronoun is not None else None
