"""A span of event time → the events of a history within it, as if the history had no others.

All questions about a history have the same terms: the span, the end, and how long ids of events are remembered.
Unreadable records have no time: they stay, and are set aside as usual.
Tested by: tests/api/test_period.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from cep.base.errors import UsageError
from cep.base.limits import DEDUP_MS_DEFAULT, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.utc import utc_ms
from cep.columnar.decode import Decoded
from cep.sources.files import KeyRecords
from cep.sources.inputs import Records
from cep.sources.pieces import Piece, Pieces, read_pieces


@dataclass(frozen=True, slots=True)
class Period:
    """A span of event time in milliseconds UTC: from `since_ms` on, and before `until_ms`.

    `to_the_end`: all windows that are open at its end close there. `dedup_ms`: for how long event ids are remembered,
    so that an event that comes again does not count; 0: not at all.
    """

    since_ms: int = TIME_MS_MIN
    until_ms: int = TIME_MS_MAX
    to_the_end: bool = False
    dedup_ms: int = DEDUP_MS_DEFAULT

    @property
    def cuts_nothing(self) -> bool:
        """True if it leaves out nothing."""
        return self.since_ms == TIME_MS_MIN and self.until_ms == TIME_MS_MAX

    def cut(self, pieces: Pieces) -> Pieces:
        """Return the pieces without the events outside of the period."""
        if self.cuts_nothing:
            return replace(pieces, to_the_end=self.to_the_end, dedup_ms=self.dedup_ms)
        cut = self._cut(pieces.pieces)
        return Pieces(pieces.rows, pieces.size, cut, self.until_ms, self.to_the_end, self.dedup_ms)

    def _cut(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        return (Piece(piece.size, self._decoder(piece.decode)) for piece in pieces)

    def _decoder(self, decode: Callable[[], Decoded]) -> Callable[[], Decoded]:
        return lambda: decode().between(self.since_ms, self.until_ms)

    def cut_key(self, records: KeyRecords) -> KeyRecords:
        """Return the records of a key without the events outside of the period."""
        if self.cuts_nothing:
            return records
        time_ms = records.batch.time_ms
        is_in = (time_ms >= self.since_ms) & (time_ms < self.until_ms)
        poison = tuple(each for each in records.poison if each.is_between(self.since_ms, self.until_ms))
        return KeyRecords(records.batch.take(np.flatnonzero(is_in)), poison)

    def reader(self, records: Records) -> Callable[[Schema], Pieces]:
        """Return a function that reads the records of the period from their files."""
        return lambda schema: self.cut(read_pieces(records.paths, schema, records.mapping))


ALWAYS = Period()


def period_of(
    since: str | None, until: str | None, flag: str = "", *, to_the_end: bool = False, dedup_ms: int = DEDUP_MS_DEFAULT
) -> Period:
    """Read a period. `flag` precedes the names in messages. Raises: UsageError for an invalid time."""
    return Period(
        _moment(f"{flag}since", since, TIME_MS_MIN),
        _moment(f"{flag}until", until, TIME_MS_MAX),
        to_the_end,
        dedup_ms,
    )


def _moment(name: str, text: str | None, missing_ms: int) -> int:
    try:
        return missing_ms if text is None else utc_ms(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
