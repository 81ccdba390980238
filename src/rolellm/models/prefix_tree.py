"""Rows that begin alike, folded into one tree that holds each common beginning once.

Rows are compared token by token, so a beginning is shared exactly as far as the tokens are equal. Whatever lies outside
a token's own path is hidden from it. See dev/shared_prefix.md; our choice of method (the paper trains row by row).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class PrefixTree:
    """Rows of tokens as one sequence of ``length`` tokens, depth first.

    Attributes:
        ids: ``(length,)`` tokens.
        positions: ``(length,)``: the position of each token in its row, counted from 0 without padding.
        ends: ``(length,)``: where the part of the sequence stops that may look at a token: token ``i`` sees token ``j``
            if ``j <= i < ends[j]``.
        index: ``(rows, columns)``: where each token of the rows is in the sequence; 0 for padding.
    """

    ids: Index
    positions: Index
    ends: Index
    index: Index


def fold_rows(ids: Index, mask: npt.NDArray[np.bool_]) -> PrefixTree:
    """Fold rows into a tree.

    Rows are put in the order of their tokens, so that those that begin alike are neighbors. All work is on whole
    arrays: about a millisecond for 128 rows of 400 tokens.

    Args:
        ids: ``(rows, columns)`` tokens; none is negative.
        mask: ``(rows, columns)``: true for tokens, false for padding, which may be on either side.

    Raises:
        ValueError: For a row without a token.
    """
    lengths = mask.sum(axis=1)
    if not lengths.all():
        raise ValueError(f"row {lengths.argmin()} of the batch is all padding")
    # One more column, all padding: there, if nowhere before, two rows differ.
    columns = np.arange(lengths.max() + 1)
    is_token = columns < lengths[:, None]
    tokens = np.full(is_token.shape, -1, np.int64)
    tokens[is_token] = ids[mask]
    rows, width = tokens.shape
    # Big-endian bytes sort like the numbers; a row that another begins with comes first.
    keys = (tokens + 1).astype(">i8").view(f"V{8 * width}")
    order = keys.ravel().argsort(kind="stable")
    tokens = tokens[order]
    later = tokens[1:]
    differs = (later != tokens[:-1]) | (later < 0)
    shared = np.append(0, differs.argmax(axis=1))
    is_own = columns >= shared[:, None]
    is_new = is_own & is_token[order]
    starts = np.append(0, is_new.sum(axis=1).cumsum())
    numbers = np.arange(rows)[:, None]
    # A token that a row shares is the one of the nearest row before that does not share it.
    owners = np.maximum.accumulate(is_own * numbers)
    index = starts[owners] + columns - shared[owners]
    # A token is seen up to the next row that shares less.
    closing = np.full_like(owners, rows)
    closing[:-1] = np.where(is_own, numbers, rows)[1:]
    closing = np.minimum.accumulate(closing[::-1])[::-1]
    unsorted = np.zeros(ids.shape, np.int64)
    unsorted[mask] = index[order.argsort()][is_token]
    positions = is_new.nonzero()[1]
    return PrefixTree(tokens[is_new], positions, starts[closing[is_new]], unsorted)
