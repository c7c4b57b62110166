"""The tree of operating errors."""

from __future__ import annotations

import ast
import inspect
import pickle
import re

from cep.base import errors
from cep.base.errors import CepError, LimitError, PatternError


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
