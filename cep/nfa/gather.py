"""Pieces in the order of their rules → each section of all of them as one array.

Tested by: tests/nfa/test_shared.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cep.kernels.layout import Int64
from cep.nfa.piece import WIDTHS, Piece, Section


class Gathered:
    """The sections of many pieces, joined. A piece is a compiled rule: one array of words, divided into sections.

    Cost: a few passes over the words, without a loop over rules.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._words: Int64 = np.concatenate([np.empty(0, np.int64), *(piece.words for piece in pieces)])
        lengths = np.array([len(piece.words) for piece in pieces], np.int64)
        first = starts_of(lengths)
        self._sizes = self._words[first[:, None] + np.arange(len(Section))].reshape(len(pieces), len(Section))
        self._first = first[:, None] + len(Section) + np.cumsum(self._sizes, axis=1) - self._sizes

    def rows(self, section: Section) -> Int64:
        """Return the rows of a section of all rules, in the order of the rules: int64[n, width of a row]."""
        words: Int64 = self._words[segments(self._first[:, section], self._sizes[:, section])]
        width = WIDTHS.get(section)
        return words.reshape(-1, width) if width else words

    def counts(self, section: Section) -> Int64:
        """Return the number of rows of each rule: int64[rules]."""
        counts: Int64 = self._sizes[:, section] // WIDTHS.get(section, 1)
        return counts


def starts_of(counts: Int64) -> Int64:
    """Return the start of each run, given the lengths of consecutive runs."""
    return np.cumsum(counts) - counts


def segments(first: Int64, count: Int64) -> Int64:
    """Return the numbers first[i] … first[i] + count[i] - 1 of each i in turn."""
    return np.arange(int(count.sum())) + np.repeat(first - starts_of(count), count)


def numbered(used: Int64, ids_count: int) -> tuple[Int64, Int64, Int64]:
    """Assign numbers 0, 1, 2, … to the used ids, in order of first use.

    Returns: the used ids, each once; the number of each of `ids_count` ids, -1 for unused ids and for the id -1; and
    for each used id its first index in `used`.
    """
    first = np.full(ids_count, len(used), np.int64)
    first[used[::-1]] = np.arange(len(used) - 1, -1, -1)  # of several assignments, numpy keeps the last one
    used_ids = np.flatnonzero(first < len(used))
    ids = used_ids[np.argsort(first[used_ids])]
    number_of_id = np.full(ids_count + 1, -1, np.int64)
    number_of_id[ids] = np.arange(len(ids))
    return ids, number_of_id, first[ids]
