"""The memory of rules that suppress, against a dictionary that is searched as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.rulebook import suppression as memory_module
from cep.rulebook.suppression import NO_MEASURE, Fired, LastAlerts

RULES = "ab"
AT = st.tuples(st.sampled_from(RULES), st.sampled_from("cdefg"))
STEPS = st.lists(
    st.tuples(
        st.dictionaries(
            AT,
            st.tuples(st.integers(0, 60), st.sampled_from((5, 7, 30)), st.integers(0, 3), st.just(NO_MEASURE)),
            max_size=4,
        ),
        st.integers(0, 80),
    ),
    max_size=12,
)


def unexpired(last: Fired, before_ms: int) -> Fired:
    """Return the entries that may still suppress an alert at or after that time, by the definition."""
    return {key: times for key, times in last.items() if times[0] + times[1] > before_ms}


@given(STEPS)
def test_it_forgets_what_can_suppress_nothing_and_tells_what_has_changed(
    steps: list[tuple[Fired, int]],
) -> None:
    memory, expected, written = LastAlerts(), Fired(), Fired()
    for fired, before_ms in steps:
        memory.put(fired)
        assert memory.forget(before_ms) == 0
        expected = unexpired({**expected, **fired}, before_ms)
        assert memory.last == expected
        then = dict(written)
        changed = memory.changed()
        for key, before in changed.items():
            assert then.get(key) == before != memory.last.get(key)
            written.pop(key, None)
            if key in memory.last:
                written[key] = memory.last[key]
        assert written == expected, "who has written the changes has all of it"
        assert memory.changed() == {}


@given(STEPS)
def test_what_it_tells_undoes_it(steps: list[tuple[Fired, int]]) -> None:
    memory = LastAlerts()
    for fired, before_ms in steps:
        then = dict(memory.last)
        memory.put(fired)
        memory.forget(before_ms)
        after = dict(memory.last)
        memory.put(memory.changed())
        assert memory.last == then
        memory.changed()
        memory.put(fired)
        memory.forget(before_ms)
        assert memory.last == after
        memory.changed()


def test_what_is_over_at_once_goes_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_AT_A_TIME", 10)
    memory = LastAlerts({("a", str(number)): (0, 7, 0, NO_MEASURE) for number in range(35)})
    counts = []
    while memory.last:
        memory.forget(100)
        counts.append(len(memory.changed()))
    assert counts == [10, 10, 10, 5]


def test_at_its_bound_it_forgets_what_is_over_first_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "FIRED_MAX", 3)
    memory = LastAlerts()
    memory.put(
        {
            ("a", "c"): (4, 7, 0, NO_MEASURE),
            ("b", "c"): (1, 9, 0, NO_MEASURE),
            ("a", "d"): (5, 7, 0, NO_MEASURE),
            ("b", "d"): (3, 9, 0, NO_MEASURE),
        }
    )
    memory.put({("b", "c"): (20, 9, 0, NO_MEASURE)})
    assert memory.forget(0) == 1
    assert memory.last == {
        ("b", "c"): (20, 9, 0, NO_MEASURE),
        ("a", "d"): (5, 7, 0, NO_MEASURE),
        ("b", "d"): (3, 9, 0, NO_MEASURE),
    }
