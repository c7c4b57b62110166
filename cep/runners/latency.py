"""Delivered alerts → a histogram of their latency, in the form of Prometheus.

The latency of an alert runs from the event time at which its match became certain to the clock at its delivery. A job
that catches up therefore has large ones. Counts start at zero with each process, as Prometheus expects.
Tested by: tests/runners/test_observe.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from cep.kernels.layout import Int64
from cep.runners.meanings import HISTOGRAMS

_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0)
_NAME = "alert_latency_seconds"


@dataclass(eq=False)
class Latency:
    """The counts of one process. A caller with several threads needs a lock."""

    counts: Int64 = field(default_factory=lambda: np.zeros(len(_BOUNDS_S) + 1, np.int64))
    sum_s: float = 0.0

    def add(self, alerts: pa.Table, now_ms: int) -> None:
        """Count alerts that are delivered at the clock `now_ms`."""
        if not alerts.num_rows:
            return
        detected_ms = np.asarray(alerts["detected_at"].cast(pa.int64()))
        seconds = np.maximum(now_ms - detected_ms, 0) / 1_000
        np.add.at(self.counts, np.searchsorted(_BOUNDS_S, seconds), 1)
        self.sum_s += float(seconds.sum())

    def family(self) -> HistogramMetricFamily:
        """Return the counts as a metric."""
        totals = np.cumsum(self.counts).tolist()
        names = [*map(floatToGoString, _BOUNDS_S), "+Inf"]
        buckets = [(name, float(count)) for name, count in zip(names, totals, strict=True)]
        return HistogramMetricFamily(f"cep_{_NAME}", HISTOGRAMS[_NAME], buckets=buckets, sum_value=self.sum_s)
