"""The texts that alert ids are digests of, against the same written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import TEXT, text_buffers
from cep.kernels.alert_texts import digest_texts

WORDS = st.text(max_size=12)


@given(st.lists(WORDS, min_size=1), st.lists(WORDS, min_size=1), st.lists(st.lists(WORDS, max_size=12), min_size=1))
def test_everything_stands_behind_its_length(heads: list[str], keys: list[str], matches: list[list[str]]) -> None:
    rows = np.arange(len(matches))[::-1].copy()
    bounds = np.cumsum([0, *map(len, matches)])
    head_of, key_of = rows % len(heads), (rows % len(keys)).astype(np.int32)
    ids = pa.array([word for words in matches for word in words], TEXT)
    texts, ends = digest_texts(
        text_buffers(pa.array(heads, TEXT)), head_of, text_buffers(pa.array(keys, TEXT)), key_of, text_buffers(ids),
        bounds, rows,
    )  # fmt: skip
    parts = [[keys[row % len(keys)], *matches[row]] for row in rows]
    expected = [
        heads[row % len(heads)].encode() + b"".join(b"%d:%s" % (len(p.encode()), p.encode()) for p in own)
        for row, own in zip(rows, parts, strict=True)
    ]
    starts = [0, *ends.tolist()]
    assert [bytes(texts[a:b]) for a, b in pairwise(starts)] == expected
    assert len(texts) == ends[-1]
