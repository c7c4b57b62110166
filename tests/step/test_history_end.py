"""The watermark at the end of a finite history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.step.history_end import watermark_at_end
from cep.step.job import Job

JOB = Job(Schema(()), (("card",),))
NOW_MS = 1_000_000
YEAR_2199_MS = 7_226_582_400_000


@pytest.mark.parametrize(
    ("job", "last_ms", "cut_ms", "expected_ms"),
    [
        (JOB, 900, None, 900),
        (JOB, TIME_MS_MIN, None, TIME_MS_MIN),
        (JOB, NOW_MS + 10, None, NOW_MS),
        (replace(JOB, ahead_ms=None), YEAR_2199_MS, None, YEAR_2199_MS),
        (replace(JOB, ends_ms=950), 900, None, 950),
        (replace(JOB, ends_ms=YEAR_2199_MS), 900, None, NOW_MS),
        (replace(JOB, ends_ms=950), 900, 950, 949),
        (replace(JOB, to_the_end=True), 900, None, TIME_MS_MAX),
    ],
)
def test_where_a_history_ends(job: Job, last_ms: int, cut_ms: int | None, expected_ms: int) -> None:
    assert watermark_at_end(job, last_ms, NOW_MS, cut_ms) == expected_ms
