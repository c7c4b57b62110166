"""Comparisons with aggregates of random columns agree with exact fractions."""

from __future__ import annotations

import pytest

from tests.nfa.averages import wrong_answers
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(60, 3))
def test_comparisons_are_those_of_fractions(seed: int) -> None:
    answers_count, wrong = wrong_answers(1_000 + seed, 12)
    assert answers_count > 0
    assert not wrong, "\n".join(wrong[:5])
