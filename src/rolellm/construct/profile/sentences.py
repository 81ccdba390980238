"""Sentences and words of script lines, with where each word stands: what phrases are counted over."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rolellm.records import Language
from rolellm.text import chinese_words

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
    """A sentence, or what stands in for one.

    Attributes:
        text: Its text.
        words: In lower case.
        spans: Where each word stands in `text`.
        edges: Before each word, and at the end, whether a clause begins or ends there.
        end: ``!`` or ``?`` (or their Chinese forms) where it ends in one.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    edges: tuple[bool, ...]
    end: str

    def shown(self, start: int, end: int) -> str:
        """Some of its words as they stand there; with the mark that the sentence ends in, where they end it."""
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
