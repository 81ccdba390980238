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
        raise ValueError(f"row {int(np.flatnonzero(lengths == 0)[0])} of the batch is all padding")
    rows, longest = len(ids), int(lengths.max())
    columns = np.arange(longest)
    tokens = np.full((rows, longest), -1, np.int64)
    tokens[columns < lengths[:, None]] = ids[mask]
    # Big-endian bytes sort like the numbers; a row that another begins with comes first.
    order = np.argsort((tokens + 1).astype(">i8").view(f"V{8 * longest}").ravel(), kind="stable")
    tokens, lengths = tokens[order], lengths[order]
    shared = np.zeros(rows, np.int64)
    differs = (tokens[1:] != tokens[:-1]) | (tokens[1:] < 0)
    shared[1:] = np.where(differs.any(axis=1), differs.argmax(axis=1), longest)
    starts = np.concatenate([[0], np.cumsum(lengths - shared)])
    is_token = columns < lengths[:, None]
    is_new = is_token & (columns >= shared[:, None])
    numbers = np.arange(rows)[:, None]
    # A token that a row shares is the one of the nearest row before that does not share it.
    owners = np.maximum.accumulate(np.where(columns >= shared[:, None], numbers, 0), axis=0)
    index = starts[owners] + columns - shared[owners]
    # A token is seen up to the next row that shares less.
    closing = np.where(columns >= shared[:, None], numbers, rows)
    closing = np.minimum.accumulate(np.vstack([closing, np.full((1, longest), rows)])[::-1], axis=0)[::-1][1:]
    unsorted = np.zeros(ids.shape, np.int64)
    in_order = np.zeros(ids.shape, np.int64)
    in_order[mask[order]] = index[is_token]
    unsorted[order] = in_order
    return PrefixTree(
        ids=tokens[is_new],
        positions=np.broadcast_to(columns, is_new.shape)[is_new],
        ends=starts[closing[is_new]],
        index=unsorted,
    )
