"""Compare counters that are added up with the library's results."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cep.step.counters import add_counts, nonzero

COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(-3, 3))


@given(COUNTS, COUNTS)
def test_counts_are_added_as_by_update(before: dict[str, int], more: dict[str, int]) -> None:
    counters, expected = Counter(before), Counter(before)
    expected.update(more)
    add_counts(counters, more)
    assert list(counters.items()) == list(expected.items())


@given(COUNTS)
def test_what_says_nothing_is_left_out(counts: dict[str, int]) -> None:
    counters = nonzero(Counter(counts))
    assert dict(counters) == {name: count for name, count in counts.items() if count != 0}
