"""Operating errors: one tree, raised when something outside a pattern file goes wrong.

    CepError
    ├── UsageError            the caller gave arguments that make no sense together
    │   ├── PatternError      a text of patterns, or a list that it names, has mistakes
    │   └── SetAsideError     a job would start without one of its live rules
    ├── RecordError           a record cannot be decoded (normally set aside as poison, not raised)
    ├── LimitError            a bound of base/limits.py was hit where nothing can be dropped
    ├── StateError            keyed state cannot be read
    │   ├── StateFormatError  written by a format version that this build does not read
    │   ├── StateCorruptError bytes fail their checksum or their shape
    │   └── StoreError        the place that keeps it refuses (disk full, held by another process)
    │       └── StoreAwayError  it is on another machine, which does not take or give it now
    ├── SourceError           a source cannot deliver (topic gone, offsets lost, file unreadable)
    │   ├── SourceAwayError   brokers do not answer now: the same question may do later
    │   ├── SourceGoneError   records are gone for good: no restart brings them back, an operator decides
    │   ├── UnreadableError   a file that cannot be read, or must not be
    │   ├── RejectedRecordsError  records of a history were rejected, and `strict` allows none of them
    │   └── InputError        the files that a user names cannot be read as events; a UsageError, too
    ├── LinkedPathError       a link where a file is to be written
    └── SinkError             a sink cannot accept alerts
        └── SinkAwayError     it does not take them now: the same write may do later

Mistakes in pattern files and rules are `Diagnostic` values that are collected and reported together
(cep/lang/diagnostics.py); in Python, one PatternError has them all. Bugs of ours are asserts.
Tested by: tests/base/test_limits.py, tests/api/test_match.py
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class CepError(Exception):
    """Root of all operating errors. The message names the fault, the ids, the value, the limit, and the next step.

    `code` is a word for programs that follows from the name of the class. It stays when the message changes.
    """

    code: ClassVar[str] = "cep"

    def __init_subclass__(cls) -> None:
        """Derive the code: StateFormatError has the code state_format."""
        super().__init_subclass__()
        cls.code = re.sub("(?<!^)([A-Z])", r"_\1", cls.__name__.removesuffix("Error")).lower()


class UsageError(CepError):
    """Arguments or settings that make no sense together; the CLI exits with 2."""


class PatternError(UsageError):
    """A text of patterns, or a list that it names, has mistakes.

    Each of `mistakes` has the fields that `cep check --json` prints: code, message, span (the place), help.
    """

    def __init__(self, message: str, mistakes: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message)
        self.mistakes = tuple(mistakes)

    def __reduce__(self) -> tuple[Any, ...]:  # so that a process can hand it on
        return type(self), (str(self), self.mistakes)


class SetAsideError(UsageError):
    """A job would start without one of its live rules."""


class RecordError(CepError):
    """A record cannot be decoded."""


class LimitError(CepError):
    """A limit was hit in a place where dropping would lose data; carries both numbers."""

    def __init__(self, subject: str, value: int, limit: int, next_step: str) -> None:
        super().__init__(f"{subject}: {value} is over the limit of {limit}; {next_step}")
        self.value = value
        self.limit = limit


class StateError(CepError):
    """Keyed state cannot be read."""


class StateFormatError(StateError):
    """State was written by a format version that this build does not read."""


class StateCorruptError(StateError):
    """State bytes fail their checksum or their shape."""


class StoreError(StateError):
    """The store, or the disk below it, refuses to read or write."""


class StoreAwayError(StoreError):
    """A place on another machine does not take or give state now. The same may do later."""


class SourceError(CepError):
    """A source cannot deliver records."""


class RejectedRecordsError(SourceError):
    """Records of a history were set aside or have a value that cannot be read, and `strict` allows none."""


class SourceAwayError(SourceError):
    """Brokers do not answer now. A job that has run asks again; a start waits for its time and ends."""


class SourceGoneError(SourceError):
    """Records were deleted before they were read, or their topic was created again: see Exit.FINAL (base/exits.py)."""


class UnreadableError(SourceError):
    """A file cannot be read, or must not be. The text is the reason alone; who asked says which file."""


class LinkedPathError(CepError, OSError):
    """A link stands on the way to a file that is to be written. It is an OSError, so every writer reports it."""


class InputError(SourceError, UsageError):
    """The files that a user names cannot be read as events; the CLI exits with 2."""


class SinkError(CepError):
    """A sink cannot accept alerts."""


class SinkAwayError(SinkError):
    """A sink does not take alerts now; it may do so later. `reason` is a word of SINK_REASONS (sinks/base.py)."""

    def __init__(self, message: str, reason: str = "no_answer") -> None:
        super().__init__(message)
        self.reason = reason
