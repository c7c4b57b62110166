"""The versions of Java that suit Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.runners.java import check_java


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ('openjdk version "1.8.0_402"', "is Java 1;"),
        ('openjdk version "11.0.2"', "is Java 11;"),
        ("", "unknown version"),
    ],
)
def test_an_old_java_is_refused(version: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(message)):
        check_java()
    java.unlink()
    with pytest.raises(UsageError, match="no Java found"):
        check_java()
