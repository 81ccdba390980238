"""The union of longest common subsequences, word for word as PyPI's ``rouge`` 1.0.1 finds it, without its table.

``rouge`` cuts both texts into sentences, takes one longest common subsequence (LCS) of every reference sentence with
every hypothesis sentence, and counts the distinct words in the union of all of them. Which LCS is taken matters, since
several may be longest: ``rouge`` walks its table L from the last cell, takes a match wherever the two words are equal,
else goes up (drops a reference word) where ``L[i-1, j] > L[i, j-1]``, else left (drops a hypothesis word).

Here L is kept as one integer a reference word (Hyyrö 2004, "Bit-parallel LCS-length computation revisited"): bit j says
whether the row rises at column j, ``L[i, j] > L[i, j-1]``. The walk then takes one step a row: left to the highest
column that rises, where it takes the match if there is one, else up. ``rouge`` may have taken a match further right,
where the row does not rise, but then the column that rises is a match too (no row above is as high so far left), and
from either column the walk goes on at the same height, hence to the same rows. So the same reference words are met,
which is all that the union needs. Rows of words that the hypothesis lacks repeat the row above, and change nothing.

Three more things make it cheap, and none changes the union:

- hypothesis words that the reference lacks are left out: no row rises there;
- all hypothesis sentences stand side by side in one integer, with an empty column between them to stop the carry, so
  that one pass over the reference fills all tables;
- a walk is not begun, or broken off, where all that it could still meet is in the union already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

Sentences = Sequence[Sequence[str]]


def count_union_lcs(hypothesis: Sentences, reference: Sentences, common: AbstractSet[str]) -> int:
    """Count the distinct words in the union of the LCS of all pairs of sentences.

    Args:
        hypothesis: The words of each sentence.
        reference: The words of each sentence.
        common: The words that stand in both.

    Returns:
        The size of the union, at most ``len(common)``. Time is proportional to the words of the reference times the
        number of hypothesis sentences, each step being integer work on as many bits as the hypothesis has common words.
    """
    columns, spans = _columns(hypothesis, common)
    everywhere = sum(spans)
    missing = everywhere
    for sentence in reference:
        rows, reach = _rows(sentence, columns, everywhere)
        missing = _walk(rows, spans, reach, missing)
        if not missing:
            break
    return sum(not places & missing for places in columns.values())


def _columns(hypothesis: Sentences, common: AbstractSet[str]) -> tuple[dict[str, int], list[int]]:
    """Give every occurrence of a common word a bit; return the bits of each word, and those of each sentence."""
    columns = dict.fromkeys(common, 0)
    spans = []
    bit = 1
    for sentence in hypothesis:
        first = bit
        for word in filter(common.__contains__, sentence):
            columns[word] |= bit
            bit <<= 1
        if bit != first:
            spans.append(bit - first)
            bit <<= 1
    return columns, spans


def _rows(sentence: Iterable[str], columns: dict[str, int], everywhere: int) -> tuple[list[tuple[int, int]], int]:
    """Fill the tables of one reference sentence with all hypothesis sentences.

    Returns:
        A row a common word, from the last to the first, as (columns that match, columns that rise); and all columns
        that match in any row.
    """
    rows = []
    flat = everywhere
    reach = 0
    for match in map(columns.get, sentence):
        if match:
            reach |= match
            carried = flat & match
            flat = ((flat + carried) | (flat ^ carried)) & everywhere
            rows.append((match, everywhere ^ flat))
    rows.reverse()
    return rows, reach


def _walk(rows: Iterable[tuple[int, int]], spans: Iterable[int], reach: int, missing: int) -> int:
    """Walk each table back from its last cell and strike the words that are met off ``missing``."""
    for span in spans:
        if not reach & span & missing:
            continue
        below = span
        for match, rises in rows:
            reachable = rises & below
            if not reachable:
                break
            stop = 1 << (reachable.bit_length() - 1)
            if match & stop:
                below &= stop - 1
                if match & missing:
                    missing ^= match
                    if not missing & reach & below:
                        break
            else:
                below &= (stop << 1) - 1
    return missing
