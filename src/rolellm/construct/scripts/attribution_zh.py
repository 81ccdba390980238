"""Who speaks in Chinese prose: by the clause that brings a quotation in, by the one after it, or by turns.

The names are learned from the text itself: what stands before verbs of speech again and again is somebody. The subject
of the clause that brings in a quotation is then looked for backwards, clause by clause, at the clauses' beginnings,
because Chinese leaves a subject out as long as it stays the same. All of this is our own choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rolellm.construct.scripts import words_zh as words
from rolellm.construct.scripts.attribution import Verdict, verdicts
from rolellm.construct.scripts.chapters import Paragraph
from rolellm.construct.scripts.cues_zh import COLON, is_spoken
from rolellm.construct.scripts.names_zh import Clause, clauses, learn_names
from rolellm.construct.scripts.quotes import Quotation
from rolellm.construct.scripts.reading import Hints
from rolellm.construct.scripts.surroundings import REACH, Surroundings

_ASKS_AGAIN = re.compile(r"(?:又|再|复)(?:追|动)?问")
_ANSWERS = re.compile(r"(?:答|回|应)(?:道|曰|云|说|答)?$")
# How long narration may go on about who spoke last without a name.
_RELAYED = 400


@dataclass(slots=True)
class _Scene:
    """What has been said in a scene so far."""

    number: int
    speakers: list[str | None] = field(default_factory=list)
    addressed: str | None = None
    has_asked: bool = False

    def last(self) -> str | None:
        return self.speakers[-1] if self.speakers else None

    def partner(self) -> str | None:
        """The other one of the last two who spoke; nobody where it is not known who was the last."""
        last = self.last()
        if last is None:
            return None
        return next((name for name in reversed(self.speakers[-4:-1]) if name is not None and name != last), None)


def attribute_zh(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
) -> list[Verdict]:
    """A verdict on each quotation of a Chinese text.

    Args:
        text: The text.
        paragraphs: Its paragraphs.
        quotations: Its quotations, in order.
        hints: `names` are taken for names of one person.
    """
    written, text = text, words.simplified(text)
    hints = replace(hints, names=[*map(words.simplified, hints.names)])
    spoken = [is_spoken(text, paragraphs[quotation.paragraph], quotation) for quotation in quotations]
    kept = [quotation for quotation, is_spoken in zip(quotations, spoken, strict=True) if is_spoken]
    found = _Attribution(text, paragraphs, kept, hints).speakers()
    if text != written:
        found = [
            name and _as_written(name, text, written, quotation.left)
            for name, quotation in zip(found, kept, strict=True)
        ]
    return verdicts(spoken, found)


def _as_written(name: str, text: str, written: str, place: int) -> str:
    """A name in the characters of the text, where it stands near a place of it."""
    for start, end in ((max(0, place - REACH), place), (place, place + REACH), (max(0, place - 20 * REACH), place)):
        found = text.rfind(name, start, end)
        if found >= 0:
            return written[found : found + len(name)]
    return name


class _Attribution(Surroundings):
    """Goes through the spoken quotations of a text in order."""

    def __init__(
        self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
    ) -> None:
        super().__init__(text, paragraphs, quotations)
        self.role = frozenset(hints.names)
        everything = range(len(quotations))
        self.names = learn_names(
            (cue for index in everything for cue in self._cues(index)),
            (clause.text for index in everything for clause in clauses(self.gap(index)) if clause.is_initial),
            map(self.said, everything),
            hints.names,
        )

    def speakers(self) -> list[str | None]:
        """One for each quotation; ``None`` where nobody could be found."""
        found: list[str | None] = []
        scene = _Scene(-1)
        for index, quotation in enumerate(self.quotations):
            number = self.scene(index)
            if number != scene.number:
                scene = _Scene(number)
            speaker = scene.last() if quotation.is_resumed else self._speaker(index, scene)
            found.append(speaker)
            scene.speakers.append(speaker)
            said = self.said(index)
            scene.addressed = self._addressed(said)
            scene.has_asked = said.rstrip("’'』」 \n").endswith(("？", "?"))
        return found

    def _own(self, index: int) -> str:
        """What stands before a quotation in its own paragraph, after the quotation before."""
        quotation = self.quotations[index]
        start = self.paragraphs[quotation.paragraph].start
        if index:
            start = max(start, self.quotations[index - 1].right)
        return self.text[max(start, quotation.left - REACH) : quotation.left]

    def _cue(self, index: int) -> str | None:
        """The narration before a quotation up to a verb of speech or a colon that brings it in, where there is one."""
        gap = self.gap(index).rstrip()
        if COLON.search(gap):
            return gap[:-1].rstrip()
        own = self._own(index).rstrip()
        if own and own[-1] in "，,":
            bare = own[:-1]
            verb = words.BEFORE.search(bare)
            return gap[:-1] if verb and not words.HEARD.search(bare[: verb.start()]) else None
        return gap if own and words.SHOUTED.search(own) else None

    def _after(self, index: int) -> re.Match[str] | None:
        """The clause after a quotation that says who spoke it."""
        match = words.AFTER.match(self.tail(index).lstrip("，, 　"))
        return None if match is None or words.HEARD.search(match["head"]) else match

    def _cues(self, index: int) -> list[tuple[str, bool]]:
        found = []
        cue = self._cue(index)
        if cue:
            parts = clauses(cue)
            verb = words.BEFORE.search(parts[-1].text) if parts else None
            if verb and verb.start():
                found.append((parts[-1].text[: verb.start()], parts[-1].is_initial))
        elif after := self._after(index):
            found.append((after["head"], True))
        return found

    def _speaker(self, index: int, scene: _Scene) -> str | None:
        cue = self._cue(index)
        if cue is not None:
            return self._by_cue(index, clauses(cue), scene)
        own, tail = self._own(index).strip(), self.tail(index)
        if after := self._after(index):
            subject = self.names.subject(after["head"], is_cue=True, is_initial=True)
            if subject and subject.kind in ("name", "group", "somebody"):
                return subject.text
            if subject and subject.text in ("我", "俺"):
                return subject.text
            return self._about(clauses(own)) or self._taking_turns(index, scene)
        if own:
            return self._about(clauses(own)) or (scene.last() if self._is_same_paragraph(index) else None)
        return self._about(clauses(tail)[:1]) or self._taking_turns(index, scene)

    def _by_cue(self, index: int, parts: list[Clause], scene: _Scene) -> str | None:
        if not parts:
            return self._taking_turns(index, scene)
        last = parts[-1].text
        verb = words.BEFORE.search(last)
        head = last[: verb.start()] if verb else last
        objects = self.names.objects(last)
        is_plural = bool(words.PLURAL.search(last))
        parts = [*parts[:-1], Clause(head, parts[-1].is_initial)]
        found, is_pronoun = self._walk(parts, objects, is_plural)
        if found is not None or is_plural:
            return found or None
        return self._going_on(index, [*parts[:-1], Clause(last, parts[-1].is_initial)], objects, scene, is_pronoun)

    def _walk(self, parts: list[Clause], objects: list[str], is_plural: bool) -> tuple[str | None, bool]:
        """Backwards from the clause that brings in a quotation to the nearest subject that fits it.

        The subject is empty where somebody comes in between whose name cannot be told.
        """
        is_pronoun, agent = False, None
        for place in range(len(parts) - 1, -1, -1):
            is_cue = place == len(parts) - 1
            clause = parts[place]
            subject = self.names.subject(clause.text, is_cue=is_cue, is_initial=clause.is_initial)
            if words.EACH.match(clause.text):
                is_plural = True
            if subject is None:
                continue
            if subject.kind == "stranger":
                return "", is_pronoun
            if subject.kind == "pronoun":
                if subject.text in ("我", "俺") and is_cue:
                    return subject.text, False
                is_plural = is_plural or subject.is_several
                is_pronoun = is_pronoun or not subject.is_several
            elif subject.kind == "agent":
                agent = agent or subject.text
            elif (
                (any(self._is_same(subject.text, name) for name in objects) and not is_cue)
                or (is_pronoun and subject.is_several)
                or (is_plural and not subject.is_several)
            ):
                continue
            else:
                return subject.text, is_pronoun
        return agent, is_pronoun

    def _going_on(
        self, index: int, parts: list[Clause], objects: list[str], scene: _Scene, is_pronoun: bool
    ) -> str | None:
        """Who brings in a quotation without being named since the one before."""
        last, partner = scene.last(), scene.partner()
        if sum(len(part.text) for part in parts) > _RELAYED:
            return None
        if len(parts) == 1 and not is_pronoun and _names_a_stranger(parts[0].text):
            return None
        dealt_with = [name for part in parts for name in self.names.objects(part.text)]
        is_reply = _ANSWERS.search(parts[-1].text) or (_ASKS_AGAIN.search(parts[-1].text) and not scene.has_asked)
        if is_reply or (is_pronoun and not self._is_same_paragraph(index) and len(parts) == 1):
            return partner
        if last is not None and any(self._is_same(last, name) for name in objects):
            return partner
        if last is not None and any(self._is_same(last, name) for name in dealt_with):
            return None
        return last

    def _about(self, parts: list[Clause]) -> str | None:
        """Who a passage of narration without a verb of speech is about."""
        for part in reversed(parts):
            subject = self.names.subject(part.text)
            if subject and subject.kind in ("name", "group"):
                return subject.text
        return None

    def _taking_turns(self, index: int, scene: _Scene) -> str | None:
        """Whose turn it is where nothing but quotations follow each other."""
        if self.gap(index).strip():
            return None
        candidate = scene.partner()
        if scene.addressed and scene.addressed != scene.last():
            candidate = scene.addressed
        quotation = self.quotations[index]
        addressed = self._addressed(self.text[quotation.start : quotation.end])
        if candidate is None or candidate == scene.last() or (addressed and self._is_same(addressed, candidate)):
            return None
        return candidate

    def _addressed(self, said: str) -> str | None:
        name = self.names.at(said.lstrip())
        return name if name and said.lstrip()[len(name) : len(name) + 1] in ("，", "！", "!", ",", "：", "、") else None

    def _is_same_paragraph(self, index: int) -> bool:
        if not index:
            return False
        return self.paragraphs[self.quotations[index].paragraph].start < self.quotations[index - 1].right

    def _is_same(self, name: str, other: str) -> bool:
        if name == other or (name in self.role and other in self.role):
            return True
        return min(len(name), len(other)) > 1 and (name.endswith(other) or other.endswith(name))


def _names_a_stranger(clause: str) -> bool:
    """Whether a clause begins with what is no verb and no adverb, so that somebody unknown may be meant."""
    verb = words.BEFORE.search(clause)
    stripped, _ = words.without_lead(clause[: verb.start()] if verb else clause)
    rest = words.without_manner(stripped)
    return len(rest) > 1 and rest[0] not in words.NEVER_FIRST and rest[0] not in words.FOLLOWS
