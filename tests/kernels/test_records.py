"""Records go into kernels of each sort, from Python and from kernel to kernel, and come back."""

from __future__ import annotations

import numpy as np
import pytest

from cep.columnar.batch import read_only
from cep.kernels.jit import bare, inlined, kernel
from cep.kernels.layout import Int64
from cep.kernels.records import Counts, Texts


@inlined
def _longer(counts: Counts, by: int) -> Counts:
    return Counts(counts.runs + by, counts.nodes, counts.matches, counts.full)


@bare
def _count_bytes(texts: Texts, counts: Counts) -> Counts:
    for row in range(texts.offsets.shape[0] - 1):
        counts = _longer(counts, texts.offsets[row + 1] - texts.offsets[row])
    return counts


@kernel
def _ends(texts: Texts) -> tuple[Int64, int]:
    counts = _count_bytes(texts, Counts(0, 0, 0, 0))
    return texts.offsets[1:].copy(), counts.runs


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_record_is_taken_by_every_sort_of_kernel(*, is_read_only: bool) -> None:
    texts = Texts(np.array([0, 2, 5]), np.frombuffer(b"abcde", np.uint8).copy())
    if is_read_only:
        texts = Texts(read_only(texts.offsets), read_only(texts.data))
    assert _count_bytes(texts, Counts(1, 2, 3, 4)) == Counts(6, 2, 3, 4)
    ends, size = _ends(texts)
    assert (ends.tolist(), size) == ([2, 5], 5)
