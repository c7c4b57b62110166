"""Kafka topics → a Spark DataFrame, batch or streaming, without a JVM connector.

    cep-kafka           undecoded records: topic, partition, offset, timestamp, key, value
    cep-kafka-events    streaming only: packed rows of a job (packed.py), decoded and packed by the task that reads
                        them, so that no record passes through the JVM

`spark.dataSource.register(KafkaDataSource)`, then `spark.read` or `spark.readStream` with `.format("cep-kafka")`:

    bootstrap.servers        host:port, more with commas (or kafka.bootstrap.servers)
    topic                    one name, more with commas
    startingOffsets          earliest | latest | {"payments": {"0": 17, "1": -2}}; batch: earliest, streaming: latest
    endingOffsets            the same; latest. Streaming: no micro-batch reads on behind it; without, there is no end
    startingTimestamp        ms: from the first record of this or a later time on, instead of startingOffsets
    endingTimestamp          ms: up to the last record before this time, instead of endingOffsets
    maxRecordsPerTrigger     records of one micro-batch at most; no bound. Trigger.AvailableNow respects it.
    maxBytesPerTrigger       bytes of keys and values of one micro-batch, as far as a sample of its first records tells.
    maxRecordsPerPartition   a longer range is read by several tasks; one task a topic partition.
    maxTasks                 tasks of one read at most, each then reads several ranges; no bound. A task costs some
                             tens of milliseconds however little it reads. So live queries want the number of cores,
                             and a micro-batch of theirs has one for every 5 000 records.
    plansLate                true: a plan ends where the one before saw the topic's end. So what it reads was there
                             before the streams beside it were asked for their ends. The first plan of a start ends at
                             the end.
    pausedPartitions         a file that names partitions to leave alone while others have something to read
    waitMs                   how long one answer of a broker is waited for
    ends                     true: the query ends with what is there. Spark 4.1 does not say so (admission.py)
    kafka.<name>             goes to librdkafka as <name>, for security above all: kafka.security.protocol,
                             kafka.sasl.mechanism, kafka.sasl.password, kafka.ssl.ca.location … Never printed or logged
    job                      cep-kafka-events: the job, as JSON
    format                   cep-kafka-events: json | avro | protobuf (sources/registry/kafka.py); json
    registry.<name>          goes to the schema registry's client: registry.url, registry.basic.auth.user.info …
    schemaFile, message      a schema (avro) or a file of descriptors and the name of a message in it (protobuf)

Offsets are planned by Spark's planner, read by range in Spark's executors, and stored in Spark's checkpoint directory.
The starting offsets count only for a query without a checkpoint. The clock of the micro-batch is stored with the
offsets, and judges events from the future and idle partitions. Some time after the last records there is a micro-batch
without records, for the watermark. The source joins no consumer group. A planned record is read or the query fails. New
partitions are read from their beginning. A topic that was deleted and created again ends the query: its id differs, or,
with brokers without topic ids, its offsets went backwards.

Spark calls a source in five processes before the first task, and a start waits for one after the other. This file and
the planner (kafka_readers.py) therefore load no code for events; a task that reads them does (kafka_events.py).
Tested by: tests/runners/spark/test_kafka_source.py, tests/runners/spark/test_live_kafka.py,
tests/runners/spark/test_kafka_looks.py, tests/runners/spark/test_future.py
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from cep.base.errors import UsageError
from cep.runners.spark.kafka_options import EVENTS_FORMAT, FORMAT, parse_options
from cep.runners.spark.kafka_readers import KafkaEventsReader, KafkaReader, KafkaStreamReader
from cep.runners.spark.packed_schema import PACKED_SCHEMA

SCHEMA = "topic string, partition int, offset bigint, timestamp bigint, key binary, value binary"


class KafkaDataSource(DataSource):
    """The data source that Spark makes from the options of one read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        return KafkaReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        return KafkaStreamReader(parse_options(self.options))


class KafkaEventsSource(KafkaDataSource):
    """The same topics as the packed rows of a job."""

    @classmethod
    def name(cls) -> str:
        return EVENTS_FORMAT

    def schema(self) -> str:
        return PACKED_SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        raise UsageError(f"{EVENTS_FORMAT} is for streaming; read {FORMAT} in a batch")

    def streamReader(self, schema: StructType) -> KafkaEventsReader:
        return KafkaEventsReader(parse_options(self.options))
