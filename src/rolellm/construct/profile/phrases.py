"""Phrases that a role may be known by: said often, and more often by it than by everybody else in its script.

Phrases are word n-grams within a sentence, counted once a line. What ranks them is the log-odds ratio with an
informative Dirichlet prior of Monroe, Colaresi and Quinn, "Fightin' Words" (Political Analysis 16(4), 2008,
equations 15, 18, 20 and 22), divided by its standard deviation; counts of phrases of one length are compared with each
other. With y and o the lines of the role and of others that have the phrase, n and m how many phrases of that length
their lines have, and as prior the script as a whole (a = y + o, A = n + m)::

    delta = log((y + a) / (n + A - y - a)) - log((o + a) / (m + A - o - a))
    score = delta / sqrt(1 / (y + a) + 1 / (o + a)) * (1 + share)

The factor with `share`, the part of its lines in which the phrase is a whole clause, is ours: "Bazinga!" is one, and
"of the" is none. So is the rest: which n-grams are looked at, and that one is dropped for a longer one that has it.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rolellm.construct.sheet import Sheet
from rolellm.core.records import Language
from rolellm.core.text import chinese_words

_ASIDE: Final = re.compile(r"\([^()]{0,200}\)|\[[^\[\]]{0,200}\]|（[^（）]{0,200}）|【[^【】]{0,200}】")
# A full stop after a title or an initial ends nothing.
_ABBREVIATED: Final = "".join(
    rf"(?<!\b{word})" for word in ("Mr", "Mrs", "Ms", "Dr", "St", "Jr", "Sr", "Capt", "[A-Z]")
)
_STOP: Final = re.compile(
    r"[!?。！？…;；:：\n\"“”‘「」『』()（）\[\]【】{}<>《》—–*_]+|--+|\.{2,}" + rf"|{_ABBREVIATED}\.(?=[\s'’]|$)"
)
_WORD: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_BREAK: Final = re.compile(r"[^\w\s'’-]")
_LOUD: Final = frozenset("!?！？")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or a stretch treated as one.

    Attributes:
        text: Its text.
        words: In lower case.
        spans: The place of each word in `text`.
        edges: Before each word, and at the end, whether a clause begins or ends there.
        end: ``!`` or ``?`` (or their Chinese forms) where it ends in one.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    edges: tuple[bool, ...]
    end: str

    def shown(self, start: int, end: int) -> str:
        """Some of its words as written, with the closing mark if they end the sentence."""
        text = " ".join(self.text[self.spans[start][0] : self.spans[end - 1][1]].split())
        return text + self.end if end == len(self.words) else text


def sentences_of(line: str, language: Language) -> Iterator[Sentence]:
    """The sentences of a line that have a word; stage directions in brackets are left out.

    Words are runs of letters and digits, with apostrophes and hyphens within; in Chinese those of jieba.
    """
    text = _ASIDE.sub("\n", line)
    if language == "zh":
        # Some Chinese texts quote with these; an apostrophe they have no use for.
        text = text.replace("'", "\n")
    start = 0
    for stop in [*_STOP.finditer(text), None]:
        piece, mark = (text[start:], "") if stop is None else (text[start : stop.start()], stop.group()[:1])
        start = len(text) if stop is None else stop.end()
        if language == "zh" and len(folded := unicodedata.normalize("NFKC", piece)) != len(piece):
            piece = folded
        found = _words(piece, language)
        if not found:
            continue
        gaps = itertools.pairwise(found)
        edges = [_BREAK.search(piece[left[1] : right[0]]) is not None for left, right in gaps]
        yield Sentence(
            piece,
            tuple(word for _, _, word in found),
            tuple((begin, end) for begin, end, _ in found),
            (True, *edges, True),
            mark if mark in _LOUD else "",
        )


def _words(text: str, language: Language) -> list[tuple[int, int, str]]:
    if language == "en":
        return [(hit.start(), hit.end(), hit.group().replace("’", "'").lower()) for hit in _WORD.finditer(text)]
    found: list[tuple[int, int, str]] = []
    folded, at = unicodedata.normalize("NFKC", text).lower(), 0
    if len(folded) != len(text):
        return []
    for word in chinese_words()(text):
        begin = folded.find(word, at)
        if begin >= 0:
            at = begin + len(word)
            found.append((begin, at, word))
    return found


#: How many phrases a model is shown to choose from.
OFFERED: Final = 40
_LONGEST: Final = 8
_LONGEST_SENTENCE: Final = 16
_CHARACTERS: Final = {"en": (2, 90), "zh": (3, 24)}
_REPEATED: Final = 2
# Of a phrase's lines, those in which a longer one has it: from here on it is no phrase of its own.
_ABSORBED: Final = 0.6
_LIST: Final = """
a about all am an and any are as at be been but by can could did do does for from had has have he her him his how
i i'd i'll i'm i've if in is it it's its let may me might more must my no nor not now of on one or our out shall
she should so some such than that that's the thee their them then there these they this those thou thy to too up
upon us was we were what when where which who why will with would yet you you'll you're your yours
"""
_FUNCTION_WORDS: Final = frozenset(_LIST.split())

Words = tuple[str, ...]
_Lines = Sequence[Sequence[Sentence]]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase of a role's.

    Attributes:
        text: As the script mostly has it.
        lines: How many of the role's lines have it.
        others: How many lines of others have it.
        score: See the module.
    """

    text: str
    lines: int
    others: int
    score: float


@dataclass(slots=True)
class _Seen:
    """How a phrase appears in the role's lines: in how many, in how many as a clause, at an edge, as a sentence."""

    lines: int = 0
    clauses: int = 0
    edged: int = 0
    sentences: int = 0
    forms: Counter[str] = field(default_factory=Counter)


def repeated_phrases(character: Sheet, most: int = OFFERED) -> list[Phrase]:
    """The phrases that two or more of the role's lines have, the best first; none twice within a longer one.

    Nor are speakers' names phrases.
    """
    own, others = _lines(character)
    counts = Counter(words for line in own for words in {s.words[a:b] for s in line for a, b in _grams(s)})
    seen = {words: _Seen() for words, count in counts.items() if count >= _REPEATED}
    for line in own:
        _look(line, seen)
    said = (words for line in others for words in {s.words[a:b] for s in line for a, b in _grams(s)})
    against = Counter(words for words in said if words in seen)
    sums = _sums(own), _sums(others)
    names = {
        word for name in {turn.speaker for turn in character.turns} for *_, word in _words(name, character.language)
    }
    kept = {
        words: found
        for words, found in seen.items()
        if _is_phrase(words, found, character.language) and not names.issuperset(words)
    }
    phrases: list[tuple[Phrase, Words]] = []
    for words in _apart(kept):
        length, found = min(len(words), _LONGEST), kept[words]
        score = _log_odds(found.lines, against[words], sums[0][length], sums[1][length])
        # Where others say nothing of that length there is nothing to compare with, and the score is 0.
        if score > 0 or not against[words]:
            form = found.forms.most_common(1)[0][0]
            score *= 1 + found.clauses / found.lines
            phrases.append((Phrase(form, found.lines, against[words], score), words))
    phrases.sort(key=lambda item: (-item[0].score, -item[0].lines, item[1]))
    return [phrase for phrase, _ in phrases[:most]]


def _lines(character: Sheet) -> tuple[_Lines, _Lines]:
    own: list[list[Sentence]] = []
    others: list[list[Sentence]] = []
    profile = character.profile()
    for turn in character.turns:
        if turn.kind == "speech":
            (own if profile.owns(turn) else others).append(list(sentences_of(turn.content, character.language)))
    return own, others


def _sums(lines: _Lines) -> list[int]:
    """How many phrases there are, by length."""
    lengths = Counter(len(sentence.words) for line in lines for sentence in line)
    return [sum(max(size - n + 1, 0) * count for size, count in lengths.items()) for n in range(_LONGEST + 1)]


def _look(line: Sequence[Sentence], seen: Mapping[Words, _Seen]) -> None:
    """Note the phrases of a line, each once, whatever its best place there."""
    met: dict[Words, tuple[bool, ...]] = {}
    for sentence in line:
        for start, end in _grams(sentence):
            words = sentence.words[start:end]
            if words in seen:
                before, after = sentence.edges[start], sentence.edges[end]
                here = before and after, before or after, end - start == len(sentence.words)
                met[words] = tuple(map(max, here, met.get(words, here)))
                seen[words].forms[sentence.shown(start, end)] += 1
    for words, (clause, edge, whole) in met.items():
        found = seen[words]
        found.lines += 1
        found.clauses += clause
        found.edged += edge
        found.sentences += whole


def _grams(sentence: Sentence) -> Iterator[tuple[int, int]]:
    """Where phrases may be in a sentence: any few words in a row, and all of a sentence that is not too long."""
    size = len(sentence.words)
    for start in range(size):
        for end in range(start + 1, min(start + _LONGEST, size) + 1):
            yield start, end
    if _LONGEST < size <= _LONGEST_SENTENCE:
        yield 0, size


def _log_odds(own: int, others: int, all_own: int, all_others: int) -> float:
    prior, total = own + others, all_own + all_others
    mine, theirs = own + prior, others + prior
    odds = mine / max(all_own + total - mine, 1), theirs / max(all_others + total - theirs, 1)
    return (math.log(odds[0]) - math.log(odds[1])) / math.sqrt(1 / mine + 1 / theirs)


def _is_phrase(words: Words, found: _Seen, language: Language) -> bool:
    least, most = _CHARACTERS[language]
    size = sum(map(len, words)) + (len(words) - 1) * (language == "en")
    mostly_whole = 2 * found.sentences >= found.lines
    short = len(words) < least if language == "en" else size < least
    if size > most or (short and not mostly_whole) or 2 * found.edged < found.lines:
        return False
    if size < _REPEATED or all(word.isdigit() for word in words):
        return False
    return mostly_whole or not _FUNCTION_WORDS.issuperset(words)


def _apart(kept: dict[Words, _Seen]) -> list[Words]:
    """The phrases without those that mostly stand within a longer one."""
    absorbed = {
        part
        for words, found in kept.items()
        for start, end in itertools.combinations(range(len(words) + 1), 2)
        if (part := words[start:end]) != words and part in kept and kept[part].lines * _ABSORBED <= found.lines
    }
    return [words for words in kept if words not in absorbed]
