"""A user's own streaming query: payments of a Delta table → match_stream → alerts in a table of Iceberg.

    python -m tests.runners.spark.lake_job FOLDER JARS

It makes the table of alerts if it is missing, runs the rest of the query, and writes the alerts in the table to
FOLDER/alerts.parquet. It can be killed at any time and started again.
Tested by: tests/runners/spark/test_other_sparks.py
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import cep

ALERTS = "lake.fraud.alerts"


def open_session(folder: Path, jars: Path, master: str = "local[2]") -> SparkSession:
    settings = {
        # Spark includes their other dependencies.
        "spark.jars": ",".join(str(jar) for form in ("delta", "iceberg") for jar in sorted(jars.glob(f"{form}-*.jar"))),
        "spark.python.authenticate.socketTimeout": "120s",  # on a busy machine
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "iceberg"),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "America/New_York",  # not ours
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    folder, jars = Path(sys.argv[1]), Path(sys.argv[2])
    spark = open_session(folder, jars)
    payments = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(folder / "payments"))
    alerts = cep.load(folder / "rules").match_stream(payments, key_groups=2)
    if not spark.catalog.tableExists(ALERTS):
        spark.createDataFrame([], alerts.schema).writeTo(ALERTS).create()
    query = (
        alerts.writeStream.format("iceberg")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .toTable(ALERTS)
    )
    query.awaitTermination()
    spark.table(ALERTS).coalesce(1).write.mode("overwrite").parquet(str(folder / "alerts.parquet"))
    spark.stop()


if __name__ == "__main__":
    main()
