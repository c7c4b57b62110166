"""The texts of alerts, the texts that alert ids are digests of, and records joined to lines, compared with Python."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import TEXT, text_buffers
from cep.kernels.text.alert_texts import bound_rows, chosen_texts, digest_texts
from cep.kernels.text.json_records import join_lines

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
        heads[row % len(heads)].encode() + b"".join(b"%d:%s" % (len(p.encode()), p.encode()) for p in row_parts)
        for row, row_parts in zip(rows, parts, strict=True)
    ]
    starts = [0, *ends.tolist()]
    assert [bytes(texts[a:b]) for a, b in pairwise(starts)] == expected
    assert len(texts) == ends[-1]


@given(st.lists(WORDS, min_size=1), st.lists(st.integers(0, 1_000)))
def test_texts_are_chosen_by_row(words: list[str], numbers: list[int]) -> None:
    rows = np.array([number % len(words) for number in numbers], np.int64)
    for array in (pa.array(words, TEXT), pa.array(["first", *words], TEXT).slice(1)):
        offsets, data = chosen_texts(*text_buffers(array), rows)
        chosen = pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(data))
        chosen.validate(full=True)
        assert chosen.to_pylist() == [words[row] for row in rows]


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 1_000)))
def test_the_events_of_matches_follow_each_other(counts: list[int], numbers: list[int]) -> None:
    bounds = np.cumsum([0, *counts])
    rows = np.array([number % len(counts) for number in numbers], np.int64)
    offsets, events = bound_rows(bounds, rows)
    bound = [events[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    assert bound == [list(range(bounds[row], bounds[row + 1])) for row in rows]
    assert len(events) == offsets[-1]


RECORDS = st.lists(st.binary(max_size=6) | st.binary(max_size=6).map(lambda inner: b"{" + inner + b"}"), max_size=8)


@given(RECORDS, st.integers(0, 3))
def test_as_join_does(records: list[bytes], first: int) -> None:
    array = pa.array(records, pa.large_binary()).slice(first)
    rest = records[first:]
    lines, in_braces, breaks = join_lines(*text_buffers(array))
    assert bytes(lines) == b"\n".join(rest)
    assert in_braces == all(len(r) >= 2 and r[:1] == b"{" and r[-1:] == b"}" for r in rest)
    assert breaks == sum(r.count(b"\n") for r in rest)


@pytest.mark.parametrize(("records", "in_braces"), [([b"{}"], True), ([b"{"], False), ([b"{}", b""], False)])
def test_one_brace_is_not_two(records: list[bytes], in_braces: bool) -> None:
    assert join_lines(*text_buffers(pa.array(records, pa.large_binary())))[1] == in_braces
