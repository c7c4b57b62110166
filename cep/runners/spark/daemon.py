"""Spark's process that forks Python workers, with everything that a worker needs loaded beforehand.

A worker that starts cold spends a second on imports and compiled kernels. Here that happens once, and every fork shares
it. Spark starts `python -m cep.runners.spark.daemon WORKER_MODULE`, by its setting spark.python.daemon.module.

Spark's own daemon imports nothing before it forks, because libraries may start threads, which a fork does not have. The
modules loaded here start no thread that a worker waits for: Arrow and OpenBLAS start theirs again after a fork. A
worker collects garbage after every task: objects from before the first fork are excluded, or it takes a tenth of a
second.
Tested by: tests/runners/spark/test_live.py
"""

import gc
import sys
from importlib import import_module

from pyspark import daemon

from cep.base.files import make_private
from cep.base.process import paused

MODULE = "cep.runners.spark.daemon"
_PRELOADED = (
    "numpy",
    "pandas",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "cep.runners.spark.kafka",
    "cep.runners.spark.kafka_events",
    "cep.runners.spark.match_stage",
    "cep.runners.spark.packed",
)
_MATCHING_WORKER = "pyspark.worker"


def main() -> None:
    """Load the modules, then serve Spark until it closes standard input. Files of workers are private."""
    make_private()
    with paused():
        for name in _PRELOADED:
            import_module(name)
        if sys.argv[1:2] == [_MATCHING_WORKER]:
            import_module("cep.runners.warm").warm_up()  # reads the kernels and, with them, numba's runtime
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
