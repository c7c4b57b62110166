"""Records joined to lines, compared with Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import text_buffers
from cep.kernels.text.lines import join_lines

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
