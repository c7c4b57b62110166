"""Frauds of eight planted forms come back as suggestions: `planted.py` has the forms, and prints all figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.planted import FORMS, is_found, suggested
from tests.seeds import RELEASE

# One seed of a form with an integer key, one with a joined key; the others only before a release.
_INNER = (("night", 1), ("cycle", 0))


@pytest.mark.parametrize(
    ("form", "seed"),
    [
        pytest.param(form, seed, marks=() if (form, seed) in _INNER else RELEASE, id=f"{form}-{seed}")
        for form in FORMS
        for seed in range(2)
    ],
)
def test_planted_frauds_are_found(form: str, seed: int, tmp_path: Path) -> None:
    answer = suggested(form, seed, tmp_path)
    assert is_found(answer), [each.reason for each in answer.rejected]
    assert ("produce" in answer.text) is (form in ("passed", "cycle", "ring"))
    assert "produce  transfer_passed" in answer.text or form not in ("cycle", "ring")
    assert ('hour(event_time, "Europe/Madrid") in [' in answer.text) is (form == "night")
