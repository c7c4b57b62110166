"""The sources of a live job on Spark: a folder or a topic; and the packed rows that they give (packed.py).

Tested by: tests/runners/spark/test_live.py
"""

from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses

from cep.columnar.mapping import PLAIN, FieldMapping
from cep.sources.registry.form import RecordFormat

PACKED_SCHEMA = "key_group int, kind string, domain int, order string, payload binary"
_JSON = RecordFormat()


def batch_clock() -> Column:
    """Return the clock of a micro-batch (ms UTC): Spark writes it down with the offsets, so it is the same again."""
    return F.unix_millis(F.current_timestamp())


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Files that appear in a folder, in every form that a replay reads. They are read in the order of their times.

    A file must appear whole: write it under a name that begins with a dot and rename it.
    """

    directory: Path
    files_per_trigger: int | None = None
    already_read: tuple[str, ...] = ()  # names of files that another job has read before
    mapping: FieldMapping = PLAIN


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A Kafka topic. `starting` and `ending`: earliest, latest, a time, or offsets as {"payments": {"0": 17}}."""

    servers: str
    topic: str
    records_per_trigger: int | None = None
    starting: str = "earliest"
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # for librdkafka
    form: RecordFormat = _JSON
    bytes_per_trigger: int | None = None
    ending: str | None = None
    ends: bool = False  # the query ends with the records that are there at its start


Source = FolderSource | TopicSource
