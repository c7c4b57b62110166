"""The processor of a stage in Spark, and the parts of a key group in its state: one state variable, a map with parts.

    part      at                  number    content
    progress  0                   0         rulebook digest, event times, deadlines (group_ports.py).
    pages     domain << 16, page  0         runs of many keys.
    past      domain << 16, page  0         head of their histories.
    segments  domain << 16, page  number    past events of many keys.
    waiting   domain              0         events that are not due yet.
    event-ids domain              bucket    secret, event ids and digests of content.
    fired     bucket              0         when rules that suppress last fired (match_stream.py).

Spark creates a variable's encoders again in every task, at some four milliseconds of Java each, so there is one for
all.

When a query starts, Spark starts a Python process only to ask for the state of a processor. Loading the matcher would
take that process one and a half seconds, so only processes that receive rows load it.
Tested by: tests/runners/spark/test_live.py, tests/runners/spark/test_savepoint.py, tests/runners/spark/test_tasks.py
"""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import orjson
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from cep.base.errors import StateCorruptError, UsageError
from cep.base.files import replace_file

VARIABLE = "parts"
PROGRESS, PAGES, PAST, SEGMENTS, WAITING, SEEN = "progress", "pages", "past", "segments", "waiting", "event-ids"
FIRED = "fired"
_SCHEMAS = "/_stateSchema/"
# Types, not text: Spark's Python asks Java twice for the meaning of a text.
_KEY = StructType(
    [StructField("part", StringType()), StructField("at", IntegerType()), StructField("number", LongType())]
)
_VALUE = StructType([StructField("content", BinaryType())])


class Part:
    """One kind of entries in Spark's state of the key group that Spark processes now. `index`: the id of a page (the
    state of some keys), or the number of a key domain. `number`: of a segment (past events), or of a bucket of time."""

    def __init__(self, entries: MapState, name: str) -> None:
        self._entries = entries
        self._name = name

    def get(self, index: int, number: int = 0) -> bytes | None:
        """Return the content of an entry; None if it does not exist."""
        value = self._entries.getValue((self._name, index, number))
        return None if value is None else bytes(value[0])

    def put(self, index: int, content: bytes, number: int = 0) -> None:
        """Set the content of an entry."""
        self._entries.updateValue((self._name, index, number), (content,))

    def remove(self, index: int, number: int = 0) -> None:
        """Remove an entry."""
        self._entries.removeKey((self._name, index, number))


class GroupParts:
    """All parts (kinds of entries) of a key group's state, in one map of Spark. Create it in a processor's `init`."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        entries = handle.getMapState(VARIABLE, _KEY, _VALUE)
        self.progress = Part(entries, PROGRESS)  # rules and times, and a list of the other entries
        self.pages = Part(entries, PAGES)  # open matches (runs) of rules: an entry (page) has the runs of many keys
        self.past = Part(entries, PAST)  # by page: a list (head) of the segments that its keys need
        self.segments = Part(entries, SEGMENTS)  # blocks of past events of many keys
        self.waiting = Part(entries, WAITING)  # events that are not due yet
        self.seen = Part(entries, SEEN)  # ids of earlier events, to find repeated ones
        self.fired = Part(entries, FIRED)  # when rules that suppress others last fired


class Stage(Protocol):
    """The work on the rows of one key group: match_stage.py, match_stream.py."""

    def rows(self, group: int, rows: Iterator[Row]) -> Iterator[Row]: ...


class MatchProcessor(StatefulProcessor):
    """The processor for transformWithState. `stage` makes a task's `Stage` (the work on its rows) from its state. The
    function is kept pickled until the first rows: unpickling imports the matcher, and Spark's start would wait."""

    def __init__(self, stage: Callable[[GroupParts], Stage]) -> None:
        self._pickled = pickle.dumps(stage)
        self._stage: Stage | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._parts = GroupParts(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if self._stage is None:
            self._stage = pickle.loads(self._pickled)(self._parts)  # noqa: S301 made by __init__
        return self._stage.rows(key[0], rows)  # key: a row with the key group alone

    def close(self) -> None:
        """Nothing is held between micro-batches but caches."""


def prepare_query(query: Path) -> None:
    """Check the folder of a query before Spark starts it, and repair it. Raises: UsageError, StateCorruptError.

    Spark would drop keyed state in several variables, which earlier builds wrote, so such a folder is refused. Spark
    stores whole paths of schema files: they are corrected in a folder that was moved or restored. The plan of a
    micro-batch is the file `offsets/NUMBER`. If no plan is finished, as after a full disk, the others are removed.
    """
    plan_files = [path for path in (query / "offsets").glob("*") if path.is_file()]
    if not any(path.name.isdigit() for path in plan_files):  # none is finished
        for path in plan_files:
            path.unlink()
    for path in sorted(query.glob("state/*/_metadata/v2/*")):
        if not path.name.isdigit():
            continue
        try:
            version, text = path.read_text().splitlines()
            metadata = orjson.loads(text)
            properties = orjson.loads(metadata["operatorPropertiesJson"])
            names = [variable["stateName"] for variable in properties["stateVariables"]]
            stores = metadata.get("stateStoreInfo", [])
            schema_paths = [list(map(str, store["stateSchemaFilePaths"])) for store in stores]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateCorruptError(f"{path} does not say what the job keeps ({error!r}); restore it") from error
        if names != [VARIABLE]:
            raise UsageError(
                f"{query.parent} keeps {', '.join(names)} apart, as an older build did; make a savepoint with "
                "`cep job savepoint --portable` of that build and restore it with `cep job restore --engine spark`"
            )
        paths_here = [[_path_here(path.parents[2], place) for place in of_store] for of_store in schema_paths]
        if paths_here != schema_paths:
            for store, of_store in zip(stores, paths_here, strict=True):
                store["stateSchemaFilePaths"] = of_store
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the earlier file
            replace_file(path, f"{version}\n{json.dumps(metadata, separators=(',', ':'))}".encode())


def _path_here(operator: Path, place: str) -> str:
    """Return where a schema file lies that some folder of this operator had; the same text if it lies there."""
    _, folder, name = place.rpartition(_SCHEMAS)
    if not folder or ".." in name:
        return place
    here = Path(os.path.abspath(operator)) / folder.strip("/") / name  # noqa: PTH100 as Spark, which follows no links
    return place if Path(place.removeprefix("file:")) == here else f"file:{here}"
