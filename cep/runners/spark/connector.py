"""A Kafka topic → packed rows, read by the Kafka connector of Spark's own JVM instead of kafka.py.

    connector = "client"   kafka.py: librdkafka, read and packed by one task; bounds of a micro-batch, an end, topic ids
    connector = "spark"    here: records come through the JVM to the task that packs them (packed.py)

For a platform on which only Spark's connector is allowed or maintained. It needs the package of `package()`. The same
records give the same alerts. Options that it cannot offer are refused: the partitions that have more waiting records
(without which a bounded micro-batch would treat those as late), the end of a stream, and settings of librdkafka that
Java's client does not have.
Tested by: tests/runners/spark/test_connector.py
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from cep.base.errors import UsageError
from cep.base.utc import utc_ms
from cep.runners.spark.packed import CLOCK_COLUMN, packer
from cep.runners.spark.packed_schema import PACKED_SCHEMA
from cep.runners.spark.sources import TopicSource, batch_clock
from cep.sources.headers import headers_of
from cep.sources.offsets import is_time
from cep.sources.registry.kafka import decode
from cep.step.event_time import TimesRead
from cep.step.job import Job

FORMAT = "kafka"
_ARTIFACT = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_COLUMNS = ("topic", "partition", "value")
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TRANSLATED = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "client.id",
)


def package() -> str:
    """Name the connector for the Spark that is installed, as `spark.jars.packages` names it."""
    return f"{_ARTIFACT}:{pyspark.__version__}"


def packed_topic(spark: SparkSession, source: TopicSource, job: Job, *, is_end: bool = False) -> DataFrame:
    """Return the stream of a topic's records as packed rows of a job. `is_end`: it ends when all records are read.

    Raises: UsageError if the connector is missing, lacks a setting, or does not support an option.
    """
    options = {
        "max_records": source.records_per_trigger,
        "max_bytes": source.bytes_per_trigger,
        "ending": source.ending,
    }
    for name, value in options.items():
        if value is not None:
            raise UsageError(f'connector = "spark" knows no {name}; leave it out, or read with connector = "client"')
    if headers_of(source.form.mapping):
        raise UsageError('connector = "spark" reads no headers; read with connector = "client"')
    reader = (
        spark.readStream.format(FORMAT)
        .option("kafka.bootstrap.servers", source.servers)
        .option("subscribe", source.topic)
        .option("failOnDataLoss", "true")
        .option("kafka.isolation.level", "read_committed")
    )
    if is_time(source.starting):
        reader = reader.option("startingTimestamp", utc_ms(source.starting))
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    else:
        reader = reader.option("startingOffsets", source.starting)
    for name, value in java_settings(dict(source.settings)).items():
        reader = reader.option(f"kafka.{name}", value)
    try:
        records = reader.load()
    except AnalysisException as error:
        raise UsageError(
            f'connector = "spark" needs Spark\'s Kafka connector; add "spark.jars.packages" = "{package()}" to [spark] '
            'conf, or read with connector = "client"'
        ) from error
    return records.select(*_COLUMNS, batch_clock().alias(CLOCK_COLUMN)).mapInArrow(
        packer(job, "value", functools.partial(decode, source.form), TimesRead({}, is_end=is_end)), PACKED_SCHEMA
    )


def java_settings(client: Mapping[str, str]) -> dict[str, str]:
    """Translate the settings of librdkafka into those of Java's client.

    Raises: UsageError, which names the unknown setting, but not its value.
    """
    for name in client:
        if name not in _TRANSLATED:
            raise UsageError(
                f"Spark's Kafka connector has no counterpart of librdkafka's {name}; known: {', '.join(_TRANSLATED)}; "
                'or read with connector = "client"'
            )
    settings = {name: client[name] for name in ("security.protocol", "client.id") if name in client}
    if "ssl.ca.location" in client:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": client["ssl.ca.location"]}
    if "ssl.keystore.location" in client:
        settings |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": client["ssl.keystore.location"]}
        settings["ssl.keystore.password"] = client.get("ssl.keystore.password", "")
    if "sasl.username" in client:
        mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", ""))
        if mechanism not in _LOGINS:
            raise UsageError(
                f"with a user name Spark's Kafka connector takes sasl.mechanism {', '.join(_LOGINS)}, not {mechanism!r}"
            )
        user, password = (_quoted(client.get(f"sasl.{name}", "")) for name in ("username", "password"))
        login = f"{_LOGINS[mechanism]} required username={user} password={password};"
        settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
    return settings


def _quoted(text: str) -> str:
    """Quote a value in the configuration of a login module, which ends at nothing that is in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
