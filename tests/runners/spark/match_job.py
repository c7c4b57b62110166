"""A user's own program: payments in files → `Rules.match` → alerts in files, on a session of any kind.

    python -m tests.runners.spark.match_job MASTER FOLDER          a master: local[2], spark://…
    python -m tests.runners.spark.match_job connect FOLDER         a server of Spark Connect that Spark starts

FOLDER has `rules` and `payments.parquet`; `alerts.parquet` comes there.
Tested by: tests/runners/spark/test_other_sparks.py
"""

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import cep

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/New_York",  # not ours
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.authenticate.socketTimeout": "120s",  # on a busy machine
}


def main() -> None:
    master, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[1]") if master == "connect" else SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    alerts: Any = cep.load(folder / "rules").match(spark.read.parquet(str(folder / "payments.parquet")))
    alerts.coalesce(1).write.mode("overwrite").parquet(str(folder / "alerts.parquet"))
    spark.stop()


if __name__ == "__main__":
    main()
