"""Pydantic's errors → problems that a rule author can read.

Tested by: tests/model/test_rule.py
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `path` says where: `$.params.small`, or `$` for the whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def problems_of(error: ValidationError, valid_names: tuple[str, ...], tags: tuple[str, ...] = ()) -> list[Problem]:
    """Turn a validation error into problems, in the order of the fields.

    `valid_names` are offered when an unknown name is close to one. `tags` are the tags of a discriminated union, which
    pydantic puts in front of every path and which no author has written.
    """
    return [_problem(detail, valid_names, tags) for detail in error.errors(include_url=False)]


def _problem(detail: ErrorDetails, valid_names: tuple[str, ...], tags: tuple[str, ...]) -> Problem:
    """Convert an error of pydantic to a problem: the path in the file, and a sentence."""
    location = detail["loc"]
    if location and location[0] in tags:
        location = location[1:]
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    match detail["type"]:
        case "extra_forbidden":
            name = str(location[-1])
            near = get_close_matches(name, valid_names, n=1)
            return Problem(path, f"no such name here{f'; did you mean `{near[0]}`?' if near else ''}")
        case "missing":
            return Problem(path, "is missing")
        case "value_error":
            return Problem(path, str(detail["ctx"]["error"]))
        case _:
            message = detail["msg"]
            return Problem(path, message[:1].lower() + message[1:])
