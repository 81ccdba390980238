"""Who speaks the quotations of a novel that name nobody: a guess from the narration around them, or by turns.

The people are those whom the text names next to a verb of saying somewhere, and the role. A guess is the subject of the
words that introduce a quotation; for an English pronoun, whoever it fits among those who spoke and were told of last;
and where one quotation follows another without a word, the other of two. All of it is our own choice; each rule was
kept because it was right more often than wrong on labeled texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rolellm.construct.scripts.quotes import Paragraph, Quotation, around
from rolellm.construct.scripts.reading import Hints, words_of
from rolellm.construct.scripts.saying import FAMILIES, MANNER, NAME, NO_NAME, PUNCTUATION, SAYS, VERBS, plain

#: Mentions of people that a pronoun may mean, speakers that it may mean, and how far back they are looked for.
_MENTIONS, _SPOKE, _FAR = 6, 4, 600


def guess(
    text: str,
    paragraphs: Sequence[Paragraph],
    quotations: Sequence[Quotation],
    speakers: Sequence[str | None],
    hints: Hints,
) -> list[str | None]:
    """Speakers for the quotations that have none; the others as they are.

    Args:
        text: The novel.
        paragraphs: Its paragraphs.
        quotations: Its quotations.
        speakers: One for each quotation, where the text names them.
        hints: The language, and the role's names.
    """
    people = {name for name in (*speakers, *hints.names) if name}
    ends = [0, *(quotation.right for quotation in quotations)]
    told = [text[max(end, one.left - _FAR) : one.left] for end, one in zip(ends, quotations, strict=False)]
    rules = _English(people, told) if hints.language == "en" else _Chinese(people)
    found: list[str | None] = []
    mentioned: list[str] = []
    for index, quotation in enumerate(quotations):
        before = quotations[index - 1].paragraph if index else 0
        if not index or paragraphs[before].scene != paragraphs[quotation.paragraph].scene:
            mentioned, first = [], index
        mentioned = [*mentioned, *rules.named(told[index])][-_MENTIONS:]
        speaker = speakers[index]
        if speaker is None:
            own, after, follows = around(text, paragraphs, quotations, index)
            cue = rules.cue(own, text[quotation.start : quotation.end].strip(), after)
            is_near = index > first and quotation.paragraph - before <= 1
            recent = list(reversed(found[max(first, index - _SPOKE) :]))
            last = recent[0] if recent else None
            is_english = isinstance(rules, _English)
            if quotation.is_resumed or (follows and (cue is None or (is_english and cue not in people))):
                speaker = last
            elif isinstance(rules, _English) and cue in _PRONOUNS:
                others = [*recent, *reversed(mentioned)] if is_near else [*reversed(mentioned), *recent]
                fitting = [
                    name
                    for name in dict.fromkeys(others)
                    if name and not (is_near and name == last) and rules.fits(name, cue)
                ]
                # Of several, only one who spoke just now.
                if fitting and (len(fitting) == 1 or (is_near and fitting[0] in recent)):
                    speaker = fitting[0]
            elif cue:
                speaker = cue
            elif cue is None and not own.strip() and is_near and last:
                speaker = next((name for name in recent if name and name != last), None)
        found.append(speaker)
    return found


_PRONOUNS: Final = ("he", "she")
_STOP: Final = r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.!?;]"
_WHO: Final = (
    r"(?:(?P<pronoun>(?i:s?he))(?![\w’'])|(?P<name>" + NAME + r")"
    r"|(?P<described>[Tt]he\s+(?:(?:old|young|little|other)\s+)?[a-z]+)(?=\s*[,.;:—–-]|\s+(?:\w+ly|with|in|to|at)\b|\s*$))"
)
_SPOKE_SO: Final = rf"(?:[a-z]+ed|{VERBS})"
_TAG: Final = re.compile(
    rf"[\s,—–-]*(?:{_SPOKE_SO}(?:\s+\w+ly)?\s+|(?=\w+\s+(?:\w+ly\s+)?(?:was\s+\w+ing|{_SPOKE_SO})\b)){_WHO}"
)
_SUBJECT: Final = re.compile(
    rf"(?:^\s*|{_STOP}[”’\"')]*\s+)(?:(?:And|But|Then|So|Now|Here|At\s+(?:last|this)|Suddenly|[A-Z]\w+ly),?\s+)?{_WHO}"
)
_SENTENCES: Final = re.compile(rf"{_STOP}\s|\n\n")
_GENDERED: Final = re.compile(r"\b(?:(?P<he>he|his|him|himself)|she|her|hers|herself)\b", re.IGNORECASE)
_MEN: Final = words_of("mr sir man son father brother uncle boy king lord gentleman husband")
_WOMEN: Final = words_of("mrs miss mme mlle lady woman girl mother sister aunt wife daughter queen")


class _English:
    def __init__(self, people: set[str], told: Iterable[str]) -> None:
        self.people = people
        # The pronouns in sentences that name one person.
        self.genders: Counter[tuple[str, bool]] = Counter()
        for sentence in (one for passage in told for one in _SENTENCES.split(passage)):
            if len({*(names := self.named(sentence))}) == 1:
                self.genders.update((names[0], match["he"] is not None) for match in _GENDERED.finditer(sentence))

    def named(self, told: str) -> list[str]:
        return [name for match in re.finditer(NAME, told) if (name := plain(match[0])) in self.people and name]

    def fits(self, name: str, pronoun: str) -> bool:
        words = {word.strip(".").casefold() for word in name.split()}
        he, she = len(words & _MEN), len(words & _WOMEN)
        if not he and not she:
            he, she = self.genders[name, True], self.genders[name, False]
        return name in self.people if he == she else (he > she) == (pronoun == "he")

    def cue(self, before: str, said: str, after: str) -> str | None:
        if said[-1:] in ",!?—–-" and (match := _TAG.match(after)):
            return self._who(match)
        if not before.strip():
            return None
        # ``Ann looked up. He said:`` has two subjects; ``Ann looked up. It was late.`` has one.
        subjects = list(_SUBJECT.finditer(before))
        return self._who(subjects[-1 if before.rstrip()[-1] in ":," else 0]) if subjects else ""

    def _who(self, match: re.Match[str]) -> str:
        if match["pronoun"]:
            return match["pronoun"].casefold()
        if match["described"]:
            return "t" + " ".join(match["described"].split())[1:]
        name = plain(match["name"])
        return name if name and name in self.people else ""


_CLAUSES: Final = re.compile(f"[^{PUNCTUATION}]+")
_SENTENCE_END: Final = ("", *'。！？…；”」』"')
_LEAD: Final = re.compile(
    "(?:那|这|這|只见|只見|早见|早見|忽见|见|見|却说|卻說|且说|话说|当下|當下|次日|一日|忽然|又|却|卻|早|此时|此時|这时|這時|正值|原来|原來|有|"
    "(?:[裡里内內][面中])?一[个個位]|內中|内中|个|個|边|邊|些|被|把)*"
)
_CITED: Final = re.compile(f"[古写寫云](?:{SAYS})$")
_GROUP: Final = re.compile("[众眾][^诸諸多皆都亦又]")
# Whose speech it is, is said before that.
_BARE: Final = re.compile(rf"(?:{MANNER}|[又說说出向前上來来了他口心想])*(?:{SAYS}|叫|罵|骂)?")
_ANOTHER: Final = re.compile(
    "(?:早|只|忽)?[见見]?(?:那|这|這|群|有|[一几幾数數二两兩三四五六七八九十]|[只忽][听聽]|门外|門外|[慌唬]得)"
)
_SAID: Final = re.compile(rf"(?P<name>.{{2,3}}?){MANNER}{{0,2}}(?:{SAYS})")
_ENDS_IN_MANNER: Final = re.compile(f"{MANNER}+$")
_LAST: Final = "道一二三四五六七八九"
_SHORT, _LONG = 2, 3


class _Chinese:
    def __init__(self, people: set[str]) -> None:
        self.people = sorted(people, key=len, reverse=True)

    def named(self, told: str) -> list[str]:
        return [name for clause in _CLAUSES.findall(told) if (name := self._at(clause))]

    def cue(self, before: str, said: str, after: str) -> str | None:
        clauses = list(_CLAUSES.finditer(before))
        if not clauses:
            return None
        saying = clauses[-1][0]
        if len(clauses) == 1 and _BARE.fullmatch(saying):
            return None
        if _CITED.search(saying):
            return ""
        # A subject holds for the clauses after it, until somebody else comes in.
        for match in reversed(clauses):
            clause = match[0]
            if group := _GROUP.match(clause):
                return group[0]
            if name := self._at(clause):
                return name
            if _core(clause)[:1] in ("他", "她"):
                return ""
            opens = before[: match.start()].rstrip()[-1:] in _SENTENCE_END
            if match is clauses[-1] and opens and not _BARE.fullmatch(clause):
                return _described(clause)
            if _ANOTHER.match(clause):
                return ""
        return ""

    def _at(self, clause: str) -> str | None:
        """The person with whose name a clause begins, but for words such as ``那``."""
        for start in {clause, _core(clause)}:
            for name in self.people:
                if start.startswith(name) and start[len(name) : len(name) + 1] not in ("的", "之"):
                    return name
        return None


def _core(clause: str) -> str:
    lead = _LEAD.match(clause)
    return clause[lead.end() :] if lead else clause


def _described(clause: str) -> str:
    """Who speaks by a clause that begins with somebody unknown, such as ``那婆婆道``; may be empty."""
    core = _core(clause)
    if NO_NAME.match(core) or core[:1] in tuple("走向自忍"):
        return ""
    if (said := _SAID.fullmatch(core)) and not _ENDS_IN_MANNER.search(name := said["name"]):
        is_full = len(name) == _LONG and name[0] in FAMILIES and not NO_NAME.match(name, 1)
        # Names end in numbers, too, such as ``小二``.
        if is_full or not NO_NAME.search(name.rstrip(_LAST)[-1:]):
            return name
    stop = NO_NAME.search(core.replace("人", " "), 1)
    name = _ENDS_IN_MANNER.sub("", core[: stop.start()] if stop else core)
    # What is in front of ``着`` is a verb.
    name = name[:-1] if stop and stop[0] in "着著了" else name
    return name if _SHORT <= len(name) <= _LONG else ""
