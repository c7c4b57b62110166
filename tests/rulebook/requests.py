"""Erasures that two people have signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.exits import Exit
from cep.cli.main import main
from tests.rulebook.people import ADA, BOB, write_key


def signed_request(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Let two people sign the erasure, once for the job and its savepoint. Return the arguments that name the file."""
    assert main(words) == Exit.USAGE
    assert "two people must sign the erasure" in capsys.readouterr().err
    file = tmp_path / "request.json"
    is_new = not file.exists()
    for name, key in (("ada", ADA), ("bob", BOB)) if is_new else ():
        assert main([*words, "--request", str(file), "--sign-with", str(write_key(tmp_path / name, key))]) == 0
    capsys.readouterr()
    return ["--request", str(file)]
