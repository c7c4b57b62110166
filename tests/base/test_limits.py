"""Limits fit the integers that hold the limited values; operating errors form one tree."""

import ast
import inspect
import pickle
import re
from collections import Counter
from pathlib import Path

from cep.base import errors, limits
from cep.base.errors import CepError, LimitError, PatternError


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


def test_every_error_is_in_the_tree_and_in_its_drawing() -> None:
    drawn = set(re.findall(r"\w+Error", inspect.getdoc(errors) or ""))
    tree = ast.parse(inspect.getsource(errors))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert drawn == defined
    assert all(issubclass(getattr(errors, name), CepError) for name in defined)


def test_a_limit_error_has_both_numbers_and_the_next_step() -> None:
    error = LimitError("runs of card c1", 11, 10, "tighten the rule")
    assert str(error) == "runs of card c1: 11 is over the limit of 10; tighten the rule"
    assert (error.value, error.limit) == (11, 10)


def test_each_error_has_a_code_of_its_own() -> None:
    tree: list[type[CepError]] = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CepError)
    ]
    assert CepError in tree
    codes = {kind: kind.code for kind in tree}
    assert len(set(codes.values())) == len(codes)
    assert all("code" in vars(kind) for kind in codes), "none has that of the error above it"


def test_a_pattern_error_goes_to_another_process_whole() -> None:
    error = pickle.loads(pickle.dumps(PatternError("two mistakes", [{"code": "CEP203"}, {"code": "CEP212"}])))
    assert str(error) == "two mistakes"
    assert [mistake["code"] for mistake in error.mistakes] == ["CEP203", "CEP212"]
