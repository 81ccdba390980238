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

from rolellm.core.records import Language, Profile
from rolellm.core.settings import load_words
from rolellm.core.text import load_chinese_tokenizer

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
        """Return some of its words as written, with the closing mark if they end the sentence."""
        text = " ".join(self.text[self.spans[start][0] : self.spans[end - 1][1]].split())
        return text + self.end if end == len(self.words) else text


def split_sentences(line: str, language: Language) -> Iterator[Sentence]:
    """Split a line into the sentences that have a word; stage directions in brackets are left out.

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
        tokens = _find_words(piece, language)
        if not tokens:
            continue
        gaps = itertools.pairwise(tokens)
        edges = [_BREAK.search(piece[previous[1] : following[0]]) is not None for previous, following in gaps]
        yield Sentence(
            piece,
            tuple(word for _, _, word in tokens),
            tuple((begin, end) for begin, end, _ in tokens),
            (True, *edges, True),
            mark if mark in _LOUD else "",
        )


def _find_words(text: str, language: Language) -> list[tuple[int, int, str]]:
    if language == "en":
        return [(hit.start(), hit.end(), hit.group().replace("’", "'").lower()) for hit in _WORD.finditer(text)]
    tokens: list[tuple[int, int, str]] = []
    folded, at = unicodedata.normalize("NFKC", text).lower(), 0
    if len(folded) != len(text):
        return []
    for word in load_chinese_tokenizer()(text):
        begin = folded.find(word, at)
        if begin >= 0:
            at = begin + len(word)
            tokens.append((begin, at, word))
    return tokens


#: How many phrases a model is shown to choose from.
OFFERED: Final = 40
_LONGEST: Final = 8
_LONGEST_SENTENCE: Final = 16
_CHARACTERS: Final = {"en": (2, 90), "zh": (3, 24)}
_REPEATED: Final = 2
# Of a phrase's lines, those in which a longer one has it: from here on it is no phrase of its own.
_ABSORBED: Final = 0.6
_FUNCTION_WORDS: Final = load_words("function_en")

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
    """The use of a phrase in the role's lines: in how many, in how many as a clause, at an edge, as a sentence."""

    lines: int = 0
    clauses: int = 0
    edged: int = 0
    sentences: int = 0
    forms: Counter[str] = field(default_factory=Counter)


def find_repeated_phrases(character: Profile, most: int = OFFERED) -> list[Phrase]:
    """Find the phrases that two or more of the role's lines have, the best first; none twice within a longer one.

    Nor are speakers' names phrases.
    """
    own, other_lines = _split_lines(character)
    counts = Counter(words for line in own for words in {s.words[a:b] for s in line for a, b in _find_grams(s)})
    usages = {words: _Seen() for words, count in counts.items() if count >= _REPEATED}
    for line in own:
        _look(line, usages)
    other_phrases = (words for line in other_lines for words in {s.words[a:b] for s in line for a, b in _find_grams(s)})
    against = Counter(words for words in other_phrases if words in usages)
    sums = _count_phrases(own), _count_phrases(other_lines)
    names = {
        word
        for name in {turn.speaker for turn in character.turns}
        for *_, word in _find_words(name, character.language)
    }
    candidates = {
        words: usage
        for words, usage in usages.items()
        if _is_phrase(words, usage, character.language) and not names.issuperset(words)
    }
    phrases: list[tuple[Phrase, Words]] = []
    for words in _drop_absorbed(candidates):
        length, usage = min(len(words), _LONGEST), candidates[words]
        score = _log_odds(usage.lines, against[words], sums[0][length], sums[1][length])
        # Where others say nothing of that length there is nothing to compare with, and the score is 0.
        if score > 0 or not against[words]:
            form = usage.forms.most_common(1)[0][0]
            score *= 1 + usage.clauses / usage.lines
            phrases.append((Phrase(form, usage.lines, against[words], score), words))
    phrases.sort(key=lambda item: (-item[0].score, -item[0].lines, item[1]))
    return [phrase for phrase, _ in phrases[:most]]


def _split_lines(character: Profile) -> tuple[_Lines, _Lines]:
    own: list[list[Sentence]] = []
    other_lines: list[list[Sentence]] = []
    for turn in character.turns:
        if turn.kind == "speech":
            (own if character.owns(turn) else other_lines).append(
                list(split_sentences(turn.content, character.language))
            )
    return own, other_lines


def _count_phrases(lines: _Lines) -> list[int]:
    """Count the phrases, by length."""
    lengths = Counter(len(sentence.words) for line in lines for sentence in line)
    return [sum(max(size - n + 1, 0) * count for size, count in lengths.items()) for n in range(_LONGEST + 1)]


def _look(line: Sequence[Sentence], usages: Mapping[Words, _Seen]) -> None:
    """Note the phrases of a line, each once, whatever its best place there."""
    met: dict[Words, tuple[bool, ...]] = {}
    for sentence in line:
        for start, end in _find_grams(sentence):
            words = sentence.words[start:end]
            if words in usages:
                before, after = sentence.edges[start], sentence.edges[end]
                flags = before and after, before or after, end - start == len(sentence.words)
                met[words] = tuple(map(max, flags, met.get(words, flags)))
                usages[words].forms[sentence.shown(start, end)] += 1
    for words, (clause, edge, is_sentence) in met.items():
        usage = usages[words]
        usage.lines += 1
        usage.clauses += clause
        usage.edged += edge
        usage.sentences += is_sentence


def _find_grams(sentence: Sentence) -> Iterator[tuple[int, int]]:
    """Yield where phrases may be in a sentence: any few words in a row, and all of a sentence that is not too long."""
    size = len(sentence.words)
    for start in range(size):
        for end in range(start + 1, min(start + _LONGEST, size) + 1):
            yield start, end
    if _LONGEST < size <= _LONGEST_SENTENCE:
        yield 0, size


def _log_odds(own_count: int, other_count: int, all_own: int, all_others: int) -> float:
    prior, total = own_count + other_count, all_own + all_others
    own_weight, other_weight = own_count + prior, other_count + prior
    odds = own_weight / max(all_own + total - own_weight, 1), other_weight / max(all_others + total - other_weight, 1)
    return (math.log(odds[0]) - math.log(odds[1])) / math.sqrt(1 / own_weight + 1 / other_weight)


def _is_phrase(words: Words, usage: _Seen, language: Language) -> bool:
    least, most = _CHARACTERS[language]
    size = sum(map(len, words)) + (len(words) - 1) * (language == "en")
    mostly_whole = 2 * usage.sentences >= usage.lines
    short = len(words) < least if language == "en" else size < least
    if size > most or (short and not mostly_whole) or 2 * usage.edged < usage.lines:
        return False
    if size < _REPEATED or all(word.isdigit() for word in words):
        return False
    return mostly_whole or not _FUNCTION_WORDS.issuperset(words)


def _drop_absorbed(usages: dict[Words, _Seen]) -> list[Words]:
    """Drop the phrases that are mostly within a longer one."""
    absorbed = {
        part
        for words, usage in usages.items()
        for start, end in itertools.combinations(range(len(words) + 1), 2)
        if (part := words[start:end]) != words and part in usages and usages[part].lines * _ABSORBED <= usage.lines
    }
    return [words for words in usages if words not in absorbed]
