"""Spark's process that forks Python workers, with all that a worker needs loaded beforehand.

A worker that begins cold spends a second on imports and on reading compiled kernels from the disk. Here that happens
once; a fork has it at once. Spark starts this as `python -m cep.runners.spark.daemon WORKER_MODULE`, by its setting
spark.python.daemon.module.

Spark's own daemon imports nothing before it forks, because libraries may start threads, which a fork does not have.
What is loaded here starts none that a worker waits for: Arrow and OpenBLAS begin theirs anew after a fork.

A worker collects garbage after every task. With all that is loaded here that took a tenth of a second, more than the
task; so what is there before the first fork is no longer looked at.
Tested by: tests/runners/spark/test_live.py
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import pandas as pd
from pyspark import daemon, worker
from pyspark.sql.streaming import stateful_processor_util

from cep.base.private import make_private
from cep.runners.spark import kafka_events, kafka_readers, match_stage, packed
from cep.runners.warm import warm_up

MODULE = "cep.runners.spark.daemon"
_PRELOADED = (np, pd, worker, stateful_processor_util, kafka_events, kafka_readers, match_stage, packed)
_MATCHING_WORKER = "pyspark.worker"


def main() -> None:
    """Load, then serve Spark until it closes standard input. What workers write is for its owner alone."""
    make_private()
    if sys.argv[1:2] == [_MATCHING_WORKER]:
        warm_up()  # reads the kernels and, with them, numba's runtime
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
