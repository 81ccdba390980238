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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

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
        first, last = self.spans[start], self.spans[end - 1]
        text = " ".join(self.text[first[0] : last[1]].split())
        if end == len(self.words):
            text += self.end
        return text


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
        piece, mark = text[start:], ""
        if stop is not None:
            piece, mark = text[start : stop.start()], stop.group()[:1]
            start = stop.end()
        folded = unicodedata.normalize("NFKC", piece)
        if language == "zh" and len(folded) != len(piece):
            piece = folded
        tokens = _find_words(piece, language)
        if not tokens:
            continue
        begins, ends, words = zip(*tokens, strict=True)
        gaps = zip(ends, begins[1:], strict=False)
        edges = [_BREAK.search(piece[left:right]) is not None for left, right in gaps]
        spans = tuple(zip(begins, ends, strict=True))
        closing = mark if mark in _LOUD else ""
        yield Sentence(piece, words, spans, (True, *edges, True), closing)


def _find_words(text: str, language: Language) -> list[tuple[int, int, str]]:
    tokens: list[tuple[int, int, str]] = []
    if language == "en":
        for hit in _WORD.finditer(text):
            word = hit.group().replace("’", "'").lower()
            tokens.append((hit.start(), hit.end(), word))
        return tokens
    folded, at = unicodedata.normalize("NFKC", text).lower(), 0
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


class _Use(NamedTuple):
    """The best use of a phrase in a line: at how many edges of clauses, whether as a sentence, and in which form."""

    edges: int
    is_sentence: bool
    form: str


def find_repeated_phrases(character: Profile) -> list[Phrase]:
    """Find the phrases that two or more of the role's lines have, the best first; none twice within a longer one.

    Nor are speakers' names phrases.
    """
    language = character.language
    speeches = [turn for turn in character.turns if turn.kind == "speech"]
    own: list[list[Sentence]] = []
    others: list[list[Sentence]] = []
    for turn in speeches:
        lines = own if character.owns(turn) else others
        lines.append(list(split_sentences(turn.content, language)))
    own_counts, other_counts = _count_lines(own), _count_lines(others)
    own_sums, other_sums = _count_phrases(own), _count_phrases(others)
    names: set[str] = set()
    for speaker in {turn.speaker for turn in character.turns}:
        names.update(word for _, _, word in _find_words(speaker, language))
    repeated = {words for words, count in own_counts.items() if count >= _REPEATED}
    uses: dict[Words, list[_Use]] = {}
    for words, own_uses in _list_uses(own, repeated).items():
        if _is_phrase(words, own_uses, language) and not names.issuperset(words):
            uses[words] = own_uses
    phrases: list[tuple[Phrase, Words]] = []
    for words in _drop_absorbed(uses):
        length, own_uses = min(len(words), _LONGEST), uses[words]
        own_count, other_count = len(own_uses), other_counts[words]
        score = _log_odds(own_count, other_count, own_sums[length], other_sums[length])
        # Where others say nothing of that length there is nothing to compare with, and the score is 0.
        if score > 0 or not other_count:
            ((form, _),) = Counter(use.form for use in own_uses).most_common(1)
            clauses = sum(use.edges == 2 for use in own_uses)
            score *= 1 + clauses / own_count
            phrases.append((Phrase(form, own_count, other_count, score), words))
    phrases.sort(key=lambda item: (-item[0].score, -item[0].lines, item[1]))
    return [phrase for phrase, _ in phrases[:OFFERED]]


def _count_lines(lines: _Lines) -> Counter[Words]:
    """Count the lines that have each phrase."""
    counts = Counter[Words]()
    for line in lines:
        phrases: set[Words] = set()
        for sentence in line:
            for start, end in _find_grams(sentence):
                phrases.add(sentence.words[start:end])
        counts.update(phrases)
    return counts


def _list_uses(lines: _Lines, phrases: Set[Words]) -> dict[Words, list[_Use]]:
    """List the uses of phrases, one a line."""
    uses: dict[Words, list[_Use]] = defaultdict(list)
    for line in lines:
        best: dict[Words, _Use] = {}
        for sentence in line:
            for start, end in _find_grams(sentence):
                words = sentence.words[start:end]
                if words in phrases:
                    is_sentence = end - start == len(sentence.words)
                    edges = sentence.edges[start] + sentence.edges[end]
                    use = _Use(edges, is_sentence, sentence.shown(start, end))
                    best[words] = max(use, best.get(words, use))
        for words, use in best.items():
            uses[words].append(use)
    return uses


def _count_phrases(lines: _Lines) -> list[int]:
    """Count the phrases, by length."""
    lengths = Counter(len(sentence.words) for line in lines for sentence in line)
    sums = []
    for words in range(_LONGEST + 1):
        phrases = (max(size - words + 1, 0) * count for size, count in lengths.items())
        sums.append(sum(phrases))
    return sums


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
    own_odds = own_weight / max(all_own + total - own_weight, 1)
    other_odds = other_weight / max(all_others + total - other_weight, 1)
    deviation = math.sqrt(1 / own_weight + 1 / other_weight)
    return (math.log(own_odds) - math.log(other_odds)) / deviation


def _is_phrase(words: Words, uses: Sequence[_Use], language: Language) -> bool:
    least, most = _CHARACTERS[language]
    size = sum(map(len, words))
    if language == "en":
        size += len(words) - 1
    if size > most or size < _REPEATED or all(map(str.isdigit, words)):
        return False
    at_edges = sum(use.edges > 0 for use in uses)
    if 2 * at_edges < len(uses):
        return False
    whole = sum(use.is_sentence for use in uses)
    if 2 * whole >= len(uses):
        return True
    is_short = (len(words) if language == "en" else size) < least
    return not is_short and not _FUNCTION_WORDS.issuperset(words)


def _drop_absorbed(uses: Mapping[Words, Sequence[_Use]]) -> list[Words]:
    """Drop the phrases that are mostly within a longer one."""
    absorbed: set[Words] = set()
    for words, listed in uses.items():
        most = len(listed) / _ABSORBED
        for start, end in itertools.combinations(range(len(words) + 1), 2):
            part = words[start:end]
            if part != words and 0 < len(uses.get(part, ())) <= most:
                absorbed.add(part)
    return [words for words in uses if words not in absorbed]
