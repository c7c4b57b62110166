"""The state of a key group comes back unchanged from its entries, separately for each level."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cep.base.limits import TIME_MS_MAX
from cep.runners.handover.group_entries import PAGE_BITS, GroupState, entries_of, state_of
from cep.state.keys import split_key
from cep.step.job import Job
from tests.columnar.common import TWO

JOB = Job(TWO, (("card_id",), ("card_id", "device")), groups_count=4, pages_count=3, levels_count=2)
DOMAINS = st.integers(0, 1)
PAGE_IDS = st.builds(lambda number, page: number << PAGE_BITS | page, DOMAINS, st.integers(0, 2))
BYTES = st.binary(max_size=5)
STATES = st.builds(
    GroupState,
    st.dictionaries(PAGE_IDS, BYTES),
    st.dictionaries(PAGE_IDS, st.integers(-(10**13), TIME_MS_MAX - 1)),
    st.dictionaries(DOMAINS, BYTES),
    st.dictionaries(st.tuples(DOMAINS, st.integers(-(10**9), 10**9)), BYTES),
    st.dictionaries(PAGE_IDS, BYTES),
    st.dictionaries(st.tuples(PAGE_IDS, st.integers(0, 10**9)), BYTES),
    st.dictionaries(PAGE_IDS, st.integers(-(10**13), TIME_MS_MAX - 1)),
)


@given(STATES, STATES, st.integers(0, 3))
def test_a_group_comes_back(first: GroupState, second: GroupState, group: int) -> None:
    entries = [*entries_of(JOB, 0, group, first), *entries_of(JOB, 1, group, second)]
    assert len({key for key, _ in entries}) == len(entries)
    assert all(split_key(key).key_group == group for key, _ in entries)
    assert state_of(JOB, 0, entries) == first
    assert state_of(JOB, 1, sorted(entries)) == second
