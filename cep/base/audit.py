"""Facts → a chain of lines, each with the hash of the one before; and a chain → the places where it was changed.

    {"code":"audit","number":"000000000002","previous":HASH,"what":"change",…,"hash":HASH}

A line's hash is of all that stands before it, so it vouches for every earlier line. Whoever has the number and the hash
of the last line, the head, can tell whether lines are missing at the end. The job keeps the head with its rules and
says it in its status. A line has no clock: a job that is built anew from the same records writes the same chain.
Tested by: tests/base/test_audit.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CODE = "audit"
_BEGINNING = hashlib.sha256(b"cep audit 1").hexdigest()
_DIGITS = 12  # so that lines in the order of their bytes are in the order of their numbers
_PREFIX = b'{"code":"audit",'
_NAMES = ("code", "number", "previous", "hash")


@dataclass(frozen=True, slots=True)
class Head:
    """The number of the last line, and its hash."""

    count: int = 0
    hash: str = _BEGINNING

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "hash": self.hash}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chain, and the place that it was read from."""

    place: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The head that a chain ends with, and what is wrong with it; nothing if it is whole."""

    head: Head
    problems: tuple[str, ...]


def extended(head: Head, facts: Mapping[str, Any]) -> tuple[Head, bytes]:
    """Return the head after a line of these facts, and the line. Facts are JSON values without a clock."""
    assert not facts.keys() & set(_NAMES), "those names are the chain's"
    number = head.count + 1
    body = {"code": CODE, "number": f"{number:0{_DIGITS}}", "previous": head.hash, **facts}
    digest = hashlib.sha256(_bytes(body)).hexdigest()
    return Head(number, digest), _bytes({**body, "hash": digest})


def is_audit(line: bytes) -> bool:
    """Return True for a line of a chain, among other lines of a file."""
    return line.startswith(_PREFIX)


def verify(lines: Iterable[Line], head: Head | None = None) -> Verdict:
    """Check a chain from its first line on, and against the head that the job says.

    Finds every line that was changed, inserted, removed or moved. Without the head lines that are missing at the end
    are not noticed, nor is a chain that was made up as a whole.
    """
    last, problems, before = Head(), list[str](), b""
    for line in lines:
        if line.data == before:
            continue  # delivered twice
        before = line.data
        values = _read(line.data)
        if values is None:
            problems.append(f"{line.place}: is no line of an audit, or was changed")
            continue
        number = int(values["number"])
        if number != last.count + 1:
            problems.append(f"{line.place}: line {number} follows line {last.count}: lines are missing or moved")
        elif values["previous"] != last.hash:
            problems.append(f"{line.place}: line {number} does not follow the line before: one of them was replaced")
        last = Head(number, values["hash"])
    if head is not None and head != last:
        problems.append(
            f"the last line is {last.count} with {last.hash[:12]}…, the job has got to {head.count} with "
            f"{head.hash[:12]}…: the end is missing, or is another one"
        )
    return Verdict(last, tuple(problems))


def _read(data: bytes) -> dict[str, Any] | None:
    """Return the values of a line that has its own hash and is written as the job writes it; else None."""
    try:
        values = json.loads(data)
        digest = values.pop("hash")
        number = values["number"]
        is_right = (
            isinstance(values["previous"], str)
            and isinstance(number, str)
            and number.isascii()
            and number.isdigit()
            and digest == hashlib.sha256(_bytes(values)).hexdigest()
            and data == _bytes({**values, "hash": digest})
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {**values, "hash": digest} if is_right else None


def _bytes(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()
