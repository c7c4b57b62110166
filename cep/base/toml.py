"""The text of a TOML file → its tables, with bounds that are looked at before anything is parsed.

Python's parser recurses for each bracket, takes quadratic time for a name with thousands of dots, and has errors of its
own for numbers with thousands of digits. Who proposes a rule must not be able to use that.
Tested by: tests/base/test_toml.py
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from cep.base.limits import NESTING_MAX, TOML_NAME_PARTS_MAX

# Texts and comments first, so that their content is not taken for structure.
_TOKEN = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*"""|'  # a text over lines, and its plain kind
    r"'''(?:[^']|'(?!''))*'''|"
    r'"(?:[^\\"\n]|\\.)*"|'
    r"'[^'\n]*'|"
    r"\#[^\n]*|"
    r"[\[\]{}.,=\n]",
    re.DOTALL,
)


def parse_toml(data: bytes | str, bytes_max: int) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises: ValueError, with a sentence for who wrote it. Cost: linear in the text.
    """
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "replace"))
    if size > bytes_max:
        raise ValueError(f"{size} bytes are over the limit of {bytes_max}")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if text.count(".") >= TOML_NAME_PARTS_MAX or text.count("[") + text.count("{") > NESTING_MAX:
        _check_bounds(text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits") from None


def _check_bounds(text: str) -> None:
    """Raise ValueError if brackets are nested too deep, or a name has too many parts."""
    depth, dots = 0, 0
    for match in _TOKEN.finditer(text):
        mark = match[0]
        if mark == ".":
            dots += 1
            if dots >= TOML_NAME_PARTS_MAX:
                place = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"line {place}: a name has more than {TOML_NAME_PARTS_MAX} parts; use fewer dots")
            continue
        if mark in "[]{},=\n":
            dots = 0
        if mark in "[{":
            depth += 1
            if depth > NESTING_MAX:
                place = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"line {place}: brackets are nested more than {NESTING_MAX} deep; nest them less")
        elif mark in "]}":
            depth = max(0, depth - 1)
