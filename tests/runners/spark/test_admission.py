"""A source plans the same micro-batches, whether or not Spark gives it the start and the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from cep.runners.spark.admission import AdmittedReader, ReadAllAvailable, ReadLimit, ReadMaxRows


class Numbers(AdmittedReader):
    """Numbers from 10 on, `limit` at a time; more and more of them become available."""

    def __init__(self, limit: int | None, *, ends: bool = False) -> None:
        super().__init__(ends=ends)
        self.limit = limit
        self.there = 10
        self.target: int | None = None

    def first(self) -> dict[str, Any]:
        return {"at": self.there}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        return ReadAllAvailable() if self.limit is None else ReadMaxRows(self.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        self.target = self.there

    def latest(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = self.there if self.target is None else self.target
        return {"at": min(end, start["at"] + limit.max_rows) if isinstance(limit, ReadMaxRows) else end}

    def planned(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Any]:
        return list(range(start["at"], end["at"]))

    def read(self, partition: Any) -> Iterator[Any]:
        return iter([partition])


def batches(source: Numbers, start: Mapping[str, Any] | None, *, is_asked_as_now: bool) -> list[list[Any]]:
    """Return the micro-batches until all numbers are read, as Spark 4.2 plans them, or as Spark 4.1 does."""
    plans: list[list[Any]] = []
    while True:
        if is_asked_as_now:
            start = source.initialOffset() if start is None else start
            end = source.latestOffset(start, source.getDefaultReadLimit())
        else:
            end = source.latestOffset()
            start = source.initialOffset() if start is None else start
        if end == start:
            return plans
        plans.append(source.partitions(start, end))
        start = end


def test_both_ways_plan_the_same() -> None:
    for limit in (None, 3):
        planned = []
        for is_asked_as_now in (True, False):
            source = Numbers(limit)
            assert batches(source, None, is_asked_as_now=is_asked_as_now) == []  # it begins at the end
            source.there = 17
            planned.append(batches(source, {"at": 10}, is_asked_as_now=is_asked_as_now))
        assert planned[0] == planned[1]
        assert list(chain.from_iterable(planned[0])) == list(range(10, 17))
        assert len(planned[0]) == (1 if limit is None else 3)


def test_a_query_that_goes_on_is_not_asked_where_it_begins() -> None:
    source = Numbers(4)
    source.there = 30
    source.partitions({"at": 20}, {"at": 20})  # so Spark 4.1 reports the content of the checkpoint
    assert batches(source, {"at": 20}, is_asked_as_now=False) == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29]]


def test_a_query_that_ends_takes_what_was_there() -> None:
    source = Numbers(3, ends=True)
    assert source.latestOffset() == source.initialOffset() == {"at": 10}
    source.there = 99
    assert batches(source, {"at": 10}, is_asked_as_now=False) == []
