"""Limits fit the integers that hold the limited values."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from cep.base import limits


def test_every_limit_is_a_positive_number() -> None:
    negative = ("TIME_MS_MIN", "EVENT_TIME_MS_MIN")
    values = {name: value for name, value in vars(limits).items() if name.isupper() and name not in negative}
    assert len(values) > 20
    assert {name for name, value in values.items() if not (isinstance(value, int) and value > 0)} == set()


def test_a_time_and_a_window_do_not_wrap() -> None:
    assert limits.TIME_MS_MAX * 2 < 2**63
    assert -limits.TIME_MS_MIN * 2 <= 2**63


def test_the_values_of_all_events_that_stay_one_by_one_are_known() -> None:
    assert limits.HISTORY_VALUES_MAX >= limits.HISTORY_EVENTS_MAX


def test_stored_numbers_fit() -> None:
    assert limits.NFA_STATES_MAX < 2**15
    assert limits.WAITS_PER_STATE_MAX < 63
    assert limits.KEY_GROUPS_LIVE_DEFAULT <= limits.KEY_GROUPS_DEFAULT <= limits.KEY_GROUPS_MAX <= 2**15


def test_every_limit_is_written_once() -> None:
    """A second line with the same name, which a merge may leave, would silently win."""
    tree = ast.parse(Path(limits.__file__).read_text())
    names = Counter(node.targets[0].id for node in tree.body if isinstance(node, ast.Assign))  # type: ignore[attr-defined]
    assert [name for name, count in names.items() if count > 1] == []
