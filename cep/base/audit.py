"""Facts → a chain of lines, each with the hash of the previous line; and a chain → the places where it was changed.

    {"code":"audit","number":"000000000002","previous":HASH,"what":"change",…,"sealed":HASH,"hash":HASH,"texts":{…}}

A line's hash covers the line up to it, including the previous hash, so it covers every earlier line. The head is the
number and the hash of the last line: with it, a reader detects missing lines at the end. The job keeps the head with
its rules and shows it in its status. A line has no clock: a job that is rebuilt from the same records writes the same
chain.

Texts of people, and keys that they name, may have to be erased later. So they come after the hash, and `sealed` is
their hash with a salt. A line without its texts and salt is still valid, but a later line must name it, and the texts
cannot be found by guessing.
Tested by: tests/base/test_signing.py
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
_NUMBER_DIGITS_MAX = 18  # a number fits into 64 bits; more digits were made up
_PREFIX = b'{"code":"audit",'
_NAMES = ("code", "number", "previous", "hash")
_SEALED, _TEXTS, _SALT = "sealed", "texts", "salt"
ERASED_LINES = "lines"  # of a line about an erasure: the numbers of lines whose texts it took away


@dataclass(frozen=True, slots=True)
class Head:
    """The number of the last line, and its hash."""

    count: int = 0
    hash: str = _BEGINNING

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "hash": self.hash}


@dataclass(frozen=True, slots=True)
class Trail:
    """The part of an audit (a chain of lines with hashes) that is needed to write its next line."""

    head: Head = Head()  # the number and the hash of the last line
    records_hash: str = ""  # the hash of all records of rule changes; "mixed" in JSON
    signers: str = ""  # the hash of the last signers file: the people who may sign changes

    def to_json(self) -> dict[str, Any]:
        return {**self.head.to_json(), "mixed": self.records_hash, "signers": self.signers}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Trail:
        # An earlier build did not write the last two.
        head = Head(int(saved["count"]), str(saved["hash"]))
        return Trail(head, str(saved.get("mixed", "")), str(saved.get("signers", "")))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chain, and the place that it was read from."""

    place: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The head at the end of a chain, its problems, if any, and the numbers of lines without their texts."""

    head: Head
    problems: tuple[str, ...]
    erased: tuple[int, ...] = ()


def add_line(
    head: Head, facts: Mapping[str, Any], texts: Mapping[str, str | None] | None = None, salt: str = ""
) -> tuple[Head, bytes]:
    """Append a line of facts to the chain of audit lines. Return the new head (number and hash of the line), the line.

    Facts lack a clock time, so that a job that is rebuilt writes the same line. `texts` can be erased from the line
    later, because the line's hash covers only a hash of them (`sealed`). The `salt` is part of this hash, and is erased
    with the texts: then nobody can test a guess of the texts."""
    assert not facts.keys() & {*_NAMES, _SEALED, _TEXTS}, "those names are the chain's"
    number = head.count + 1
    body = {"code": CODE, "number": f"{number:0{_DIGITS}}", "previous": head.hash, **facts}
    erasable_part = {}  # comes after the hash of the line
    if texts is not None:
        erasable_part[_TEXTS] = {_SALT: salt, **texts}
        body[_SEALED] = _hash(erasable_part[_TEXTS])
    digest = _hash(body)
    return Head(number, digest), _bytes({**body, "hash": digest, **erasable_part})


def texts_of(line: bytes) -> dict[str, Any]:
    """Return the texts of a line, without the salt; empty if they were erased or the line is invalid."""
    values = _parsed(line)
    texts = None if values is None else values.get(_TEXTS)
    return {name: text for name, text in (texts or {}).items() if name != _SALT}


def without_texts(line: bytes) -> tuple[int, bytes]:
    """Return the number of a line that has texts, and the line without them."""
    values = json.loads(line)
    return int(values["number"]), _bytes({**values, _TEXTS: None})


def is_audit(line: bytes) -> bool:
    """Return True for a line of a chain, among other lines of a file."""
    return line.startswith(_PREFIX)


def is_letter(line: bytes) -> bool:
    """Return True for a dead letter or a suppressed alert: no line of an audit, not even a damaged one."""
    if is_audit(line):
        return False
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return False
    is_object = isinstance(values, dict)
    return is_object and "previous" not in values and ("held" in values or values.get("code") not in (None, CODE))


def verify(lines: Iterable[Line], head: Head | None = None, heads: Mapping[str, Head] | None = None) -> Verdict:
    """Check a chain from its first line on, against the head that the job shows, and against earlier heads by place.

    Finds every line that was changed, inserted, removed or moved, and texts that are missing without an erasure. A job
    that stopped may deliver its last lines again. So lines up to the last one may come again, all of them in order.
    Without a head, missing lines at the end and a completely forged chain are not detected.
    """
    waiting = {place: one for place, one in (heads or {}).items() if one.count}
    last, problems = Head(), list[str]()
    hashes, number_before = dict[int, str](), 0  # hashes by number of a line
    bare, named = dict[int, str](), set[int]()
    for line in lines:
        values = _parsed(line.data)
        if values is None:
            problems.append(f"{line.place}: is no line of an audit, or was changed")
            continue
        number = int(values["number"])
        named.update(values.get(ERASED_LINES, ()))
        if _SEALED in values and values[_TEXTS] is None:
            bare[number] = line.place
        if number <= number_before + 1 and hashes.get(number) == values["hash"]:
            number_before = number  # delivered again, as must be all lines after it
            continue
        if number != last.count + 1 or number_before != last.count:
            problems.append(f"{line.place}: line {number} follows line {number_before}: lines are missing or moved")
        elif values["previous"] != last.hash:
            problems.append(f"{line.place}: line {number} does not follow the line before: one of them was replaced")
        last, number_before, hashes[number] = Head(number, values["hash"]), number, values["hash"]
        waiting = {place: one for place, one in waiting.items() if one != last}
    if number_before != last.count:
        problems.append(
            f"the end is line {number_before} once more, without the lines after it: lines were copied or moved"
        )
    problems += [
        f"{place}: line {number} has lost its texts, and no later line says that they were erased"
        for number, place in bare.items()
        if number not in named
    ]
    problems += [
        f"line {one.count} with {one.hash[:12]}…, which {place} has, is not there: lines were removed or replaced, or "
        "the job has not delivered them yet"
        for place, one in waiting.items()
    ]
    if head is not None and head != last:
        problems.append(
            f"the last line is {last.count} with {last.hash[:12]}…, the job has got to {head.count} with "
            f"{head.hash[:12]}…: the end is missing, or is another one"
        )
    return Verdict(last, tuple(problems), tuple(bare))


def _parsed(data: bytes) -> dict[str, Any] | None:
    """Parse an audit line. Return None unless its hash is right and it has exactly the form that the job writes. The
    hash does not cover its texts, which may have been erased (null). Otherwise `sealed` must be their hash."""
    try:
        values = json.loads(data)
        number, digest = values["number"], values["hash"]
        body = {name: value for name, value in values.items() if name not in ("hash", _TEXTS)}
        erasable_part = {_TEXTS: values[_TEXTS]} if _SEALED in values else {}
        is_right = (
            isinstance(values["previous"], str)
            and isinstance(number, str)
            and number.isascii()
            and number.isdigit()
            and len(number) <= _NUMBER_DIGITS_MAX
            and digest == _hash(body)
            and data == _bytes({**body, "hash": digest, **erasable_part})
            and isinstance(erasable_part.get(_TEXTS), dict | None)
            and (erasable_part.get(_TEXTS) is None or _hash(erasable_part[_TEXTS]) == values[_SEALED])
            and all(isinstance(line, int) for line in values.get(ERASED_LINES, ()))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return values if is_right else None


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(_bytes(values)).hexdigest()


def _bytes(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()
