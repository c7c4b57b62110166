"""Rejected records of a job → its log and health while it runs, and its last lines and exit code.

Tested by: tests/cli/test_job_rejections.py, tests/cli/test_run.py, tests/cli/test_live.py
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cep.base.limits import PROGRESS_LINES_MS
from cep.cli.rejected import REJECTED_MAX
from cep.runners.observe import RECORDS, Log, Observed
from cep.step.counters import add_counts
from cep.step.rejections import Examples, Rejections

# A few bad records say nothing about a source, so the job looks at so many at least.
_RECORDS_MIN = 100


@dataclass(slots=True)
class _Span:
    """The counters and the first dead letters of some micro-batches."""

    counters: Counter[str] = field(default_factory=Counter)
    examples: Examples = field(default_factory=Examples)

    @property
    def rejections(self) -> Rejections:
        return Rejections.of(self.counters, self.examples)


@dataclass(slots=True)
class JobRejections:
    """Counts the records that a process of a job rejects. `share_max`: the share that may be rejected.

    The share of the records since the last look decides whether the job is healthy; it is judged once a minute at most.
    The log and the health name codes and fields. Only the last lines of a job that `ends` by itself have examples.
    """

    observed: Observed
    log: Log
    share_max: float
    ends: bool = False
    every_ms: int = PROGRESS_LINES_MS
    _whole: _Span = field(default_factory=_Span)
    _latest: _Span = field(default_factory=_Span)
    _looked_s: float = float("-inf")

    def add(self, counters: Counter[str], dead_letters: Sequence[bytes]) -> None:
        """Take the outcome of a micro-batch."""
        add_counts(self._latest.counters, counters)
        self._latest.examples.add(dead_letters)
        now_s = time.monotonic()
        if self._latest.counters["records"] >= _RECORDS_MIN and (now_s - self._looked_s) * 1_000 >= self.every_ms:
            self._looked_s = now_s
            self._judge(self._ended_span().rejections)

    def end(self) -> int:
        """Print the report of the whole process. Return 1 if more records were rejected than allowed, otherwise 0."""
        self._ended_span()
        rejections = self._whole.rejections
        if not rejections.records and self.ends:
            self.log.tell("nothing_read", *rejections.lines(REJECTED_MAX, self.share_max))
        if not rejections.count:
            return 0
        if self.log.form == "text" and self.ends:
            for line in rejections.lines(REJECTED_MAX, self.share_max):
                self.log.tell("rejected", line)
        else:
            self._tell(rejections)
        return int(rejections.is_above(self.share_max))

    def _ended_span(self) -> _Span:
        """Add the latest micro-batches to the whole. Return them, and begin the next span."""
        ended, self._latest = self._latest, _Span()
        add_counts(self._whole.counters, ended.counters)
        self._whole.examples.join(ended.examples)
        return ended

    def _judge(self, rejections: Rejections) -> None:
        is_above = rejections.is_above(self.share_max)
        if rejections.count and not is_above:
            self._tell(rejections)
        trouble = f"more than {self.share_max:g} of them are rejected" if is_above else None
        self.observed.note(RECORDS, trouble, self._sentence(rejections))

    def _tell(self, rejections: Rejections) -> None:
        facts: Mapping[str, int] = {"records": rejections.records, "rejected": rejections.count}
        self.log.tell("rejected", self._sentence(rejections), **facts, reasons=rejections.names())

    def _sentence(self, rejections: Rejections) -> str:
        return f"{rejections.verdict(REJECTED_MAX, self.share_max)}: {rejections.names()}"
