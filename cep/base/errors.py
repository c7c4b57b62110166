"""Operating errors: one tree, raised when something outside a pattern file goes wrong.

    CepError
    ├── UsageError            the caller gave arguments that make no sense together
    ├── RecordError           a record cannot be decoded (normally set aside as poison, not raised)
    ├── LimitError            a bound of base/limits.py was hit where nothing can be dropped
    ├── StateError            keyed state cannot be read
    │   ├── StateFormatError  written by a format version that this build does not read
    │   ├── StateCorruptError bytes fail their checksum or their shape
    │   └── StoreError        the place that keeps it refuses (disk full, held by another process)
    ├── SourceError           a source cannot deliver (topic gone, offsets lost, file unreadable)
    │   └── UnreadableError   a file that cannot be read, or must not be
    └── SinkError             a sink cannot accept alerts
        └── SinkAwayError     nobody answers there for now: the same may do later

Mistakes in pattern files and rules are not exceptions: they are `Diagnostic` values that are collected and
reported together (cep/lang/diagnostics.py). Bugs of ours are asserts.
Tested by: tests/base/test_errors.py
"""


class CepError(Exception):
    """Root of all operating errors. The message says what, which ids, the value, the limit, the next step."""


class UsageError(CepError):
    """Arguments or settings that make no sense together; the CLI exits with 2."""


class RecordError(CepError):
    """A record cannot be decoded."""


class LimitError(CepError):
    """A limit was hit in a place where dropping would lose data; carries both numbers."""

    def __init__(self, what: str, value: int, limit: int, next_step: str) -> None:
        super().__init__(f"{what}: {value} is over the limit of {limit}; {next_step}")
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


class SourceError(CepError):
    """A source cannot deliver records."""


class UnreadableError(SourceError):
    """A file cannot be read, or must not be. The text is the reason alone; who asked says which file."""


class SinkError(CepError):
    """A sink cannot accept alerts."""


class SinkAwayError(SinkError):
    """Nobody answers at a sink for now. The same write may do later; until then nothing is lost."""
