"""Ranges of Kafka topics → packed rows of a job, in the task that reads them.

Tested by: tests/runners/spark/test_kafka.py, tests/runners/spark/test_live.py
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cep.runners.spark.packed import RECORDS_AT_ONCE, DecodedPart, pack_parts, task_order
from cep.runners.spark.paused_partitions import partition_name
from cep.sources.kafka import KafkaSettings, read_range
from cep.sources.offsets import OffsetRange
from cep.sources.registry.form import RecordFormat, headers_of
from cep.sources.registry.kafka import decode
from cep.step.event_time import TimesRead
from cep.step.job import Job


def read_events(
    settings: KafkaSettings, form: RecordFormat, job_json: Mapping[str, Any], ranges: Sequence[OffsetRange],
    times: TimesRead,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Read ranges of offsets. Yield their records as packs: batches of rows for the shuffle, each of limited size.

    `job_json`: see Job.to_json. `times`: how far each partition was read before the micro-batch, and its clock. Every
    pack has these times, so there is one even without records. Raises: UsageError, SourceError.
    """
    job = Job.from_json(job_json)
    batches: dict[OffsetRange, list[pa.RecordBatch]] = {}
    records_count = packs_count = 0
    headers = headers_of(form.mapping)
    for offset_range in ranges:
        for batch in read_range(settings, offset_range, headers=headers):
            batches.setdefault(offset_range, []).append(batch)
            records_count += batch.num_rows
            if records_count >= RECORDS_AT_ONCE:
                yield _packed(job, form, batches, times, packs_count)
                batches, records_count, packs_count = {}, 0, packs_count + 1
    if records_count or packs_count == 0:
        yield _packed(job, form, batches, times, packs_count)  # packs_count numbers them in order


def _packed(
    job: Job, form: RecordFormat, batches: Mapping[OffsetRange, Sequence[pa.RecordBatch]], times: TimesRead, number: int
) -> pa.RecordBatch:
    parts = []
    for offset_range, range_batches in batches.items():
        values = pa.concat_arrays([batch.column("value") for batch in range_batches])
        decoded = decode(form, job.schema, values, offset_range.topic)
        name = partition_name(offset_range.topic, offset_range.partition)
        parts.append(DecodedPart(name, decoded, times.partitions[name].is_behind, offset_range.partition))
    return pack_parts(job, parts, times, task_order(number))
