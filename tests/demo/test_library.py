"""The patterns and rules of the installation are found in a checkout, and copied whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.demo.library import copy_library, library_folder
from cep.rulebook.files import read_rules

ROOT = Path(__file__).parents[2]


def test_a_checkout_has_its_own_folders() -> None:
    assert library_folder() == ROOT


def test_a_copy_has_every_pattern_and_the_same_rules(tmp_path: Path) -> None:
    copy_library(tmp_path / "day")
    names = {path.name for path in (tmp_path / "day" / "patterns").iterdir()}
    assert names == {path.name for path in (ROOT / "patterns").glob("*.cep")}
    assert read_rules(tmp_path / "day" / "rules") == read_rules(ROOT / "rules")
    assert (tmp_path / "day" / "rules" / "rules.lock").read_bytes() == (ROOT / "rules" / "rules.lock").read_bytes()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    with pytest.raises(UsageError, match="choose another folder"):
        copy_library(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rules"]
