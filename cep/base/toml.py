"""The text of a TOML file → its tables, with bounds that are looked at before anything is parsed.

Python's parser recurses for each bracket, takes quadratic time for a name with thousands of dots, and has errors of its
own for long numbers. The author of a rule must not be able to use that.
Tested by: tests/base/test_reading.py
"""

import json
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from cep.base.limits import NESTING_MAX, TOML_NAME_PARTS_MAX

_TEXTS = (
    r'"""(?:[^\\"]|\\.|"(?!""))*"""|'  # a text over lines, and its plain kind
    r"'''(?:[^']|'(?!''))*'''|"
    r'"(?:[^\\"\n]|\\.)*"|'
    r"'[^'\n]*'|"
)
# Texts and comments first, so that their content is not taken for structure.
_TOKEN = re.compile(_TEXTS + r"\#[^\n]*|[\[\]{}.,=\n]", re.DOTALL)
_VALUE = re.compile(_TEXTS + r"[^\s,}\]#]+", re.DOTALL)


def parse_toml(data: bytes | str, bytes_max: int) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises: ValueError, with a sentence for its author. Cost: linear, because names
    of many parts and deep brackets, which cost Python's parser more, are refused first."""
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
    except ValueError:  # Python's own bound of digits
        raise ValueError("a number has too many digits") from None


def _check_bounds(text: str) -> None:
    """Refuse deep brackets and names of many parts, which would cost Python's parser its stack or minutes."""
    depth, dots = 0, 0
    for match in _TOKEN.finditer(text):
        sign = match[0]
        if sign == ".":
            dots += 1
            if dots >= TOML_NAME_PARTS_MAX:
                line = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"line {line}: a name has more than {TOML_NAME_PARTS_MAX} parts; use fewer dots")
            continue
        if sign in "[]{},=\n":
            dots = 0
        if sign in "[{":
            depth += 1
            if depth > NESTING_MAX:
                line = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"line {line}: brackets are nested more than {NESTING_MAX} deep; nest them less")
        elif sign in "]}":
            depth = max(0, depth - 1)


def with_value(text: str, names: tuple[str, ...], value: object) -> str:
    """Return the text of a TOML file with one value changed or added. All other text stays, comments too.

    `names` are the tables and the key. The function tries one change after the other, and parses the changed text. It
    returns the first text whose tables are the old ones with the new value, so nothing else can change. Raises:
    ValueError if no text has these tables, or if the given text is invalid. Cost: the lines squared.
    """
    expected = tomllib.loads(text)
    present = _value_at(expected, names)
    if present == value and isinstance(present, bool) == isinstance(value, bool):  # True == 1
        return text
    expected = deepcopy(expected)
    table = expected
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"`{name}` is not a table")  # noqa: TRY004 - the file is wrong, not the caller
    table[names[-1]] = value
    expected_text = _canonical(expected)
    value_text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the character itself is not TOML
    for changed in _changed_texts(text, names, value_text):
        try:
            if _canonical(tomllib.loads(changed)) == expected_text:
                return changed
        except tomllib.TOMLDecodeError:
            continue
    raise ValueError(f"has no place for `{'.'.join(names)} = {value}`; change it by hand")


def _canonical(tables: dict[str, Any]) -> str:
    """Return a text that differs for True and 1, which are equal in Python."""
    return json.dumps(tables, sort_keys=True, default=repr)


def _value_at(tables: dict[str, Any], names: tuple[str, ...]) -> object:
    value: Any = tables
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _changed_texts(text: str, names: tuple[str, ...], value_text: str) -> Iterator[str]:
    """Yield TOML texts that may have the new value in the right place, the smallest change first. The caller parses
    each and takes the first one that means the right tables."""
    key = names[-1]
    for match in re.finditer(rf"""(["']?){re.escape(key)}\1[ \t]*=[ \t]*""", text):  # another value of the key
        value = _VALUE.match(text, match.end())
        if value is not None:
            yield text[: match.end()] + value_text + text[value.end() :]
    end = "\r\n" if "\r\n" in text else "\n"
    whole = text if not text or text.endswith("\n") else text + end
    starts = [*(match.end() for match in re.finditer("\n", whole)), 0]  # the first line: before a table, if need be
    for position in starts:  # a new line with the key
        yield f"{whole[:position]}{key} = {value_text}{end}{whole[position:]}"
    for match in re.finditer(r"\{[ \t]*(\})?", text):  # a new first entry of an inline table
        yield f"{text[: match.start()]}{{ {key} = {value_text}{' }' if match[1] else ', '}{text[match.end() :]}"
    if len(names) > 1:  # a new table at the end
        yield f"{whole}{end}[{'.'.join(names[:-1])}]{end}{key} = {value_text}{end}"
    for position in starts:  # a new line with the names of tables and key, joined by dots
        yield f"{whole[:position]}{'.'.join(names)} = {value_text}{end}{whole[position:]}"
