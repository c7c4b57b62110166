"""Helpers of the verbs: find pattern files, read NAME=VALUE, and print text that a terminal can show.

Tested by: tests/cli/test_authoring.py
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.text import visible


def pattern_files(paths: list[str]) -> list[Path]:
    """List the named files, each once; of a folder all `*.cep` files in it and below. Raises: UsageError."""
    pattern_paths: dict[Path, None] = {}
    for name in paths:
        path = Path(name)
        files = sorted(path.rglob("*.cep")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{name} holds no pattern files (*.cep)")
        if not path.exists():
            raise UsageError(f"there is no file or folder {name}")
        pattern_paths.update(dict.fromkeys(files))
    return list(pattern_paths)


def pairs(texts: Iterable[str], flag: str, form: str) -> dict[str, str]:
    """Read the values of a repeated flag, each NAME=VALUE. Raises: UsageError that shows the form."""
    parted = [text.partition("=") for text in texts]
    for name, sign, value in parted:
        if not name.strip() or not sign:
            raise UsageError(f"{flag} {name}{sign}{value}: write {form}")
    named = {name.strip(): value.strip() for name, _, value in parted}
    if len(named) < len(parted):
        raise UsageError(f"{flag}: a name is given twice; give each of {', '.join(named)} once")
    return named


def printed(text: str, *, is_styled: bool = False) -> None:
    """Print a text. Hidden characters, and characters that the terminal's encoding lacks, become escapes.

    A styled text has escape sequences of its own; its maker has escaped its values.
    """
    text = text if is_styled else visible(text)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
