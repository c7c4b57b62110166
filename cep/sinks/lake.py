"""Alerts → a Delta Lake table, each micro-batch once: its number is in the commit that has its alerts.

    PLACE/_delta_log/…json    a commit: the files of a micro-batch, `txn` with the job's name and the number
    PLACE/part-….parquet      the columns of the alert table

Readers see all alerts of a micro-batch or none. A repeated micro-batch finds its number, and its alerts by their ids. A
place is a folder or a URL of the library (`s3://…`), with credentials in the environment. Many small commits make many
small files: the owner of the table compacts it.

A write is one try, which ends after some seconds. A failure of the place (no answer, 503, a missing right, a full disk)
raises SinkAwayError, and the runner tries again. Alerts of another job under this job's number raise SinkError.
Tested by: tests/sinks/test_lake.py, tests/sinks/test_contract.py, tests/cli/test_sinks.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cep.base.errors import SinkError
from cep.base.secrets import check_place
from cep.sinks.base import Recalled, sink_away

# The library takes half a second to import: a job without a lake starts without it.
if TYPE_CHECKING:
    from deltalake import DeltaTable

_ID = "alert_id"
_COLOR = re.compile(r"\x1b\[\d+m|↳")  # of a terminal, in messages of the library
_CLOCKS_DIFFER_MS = 3_600_000  # clocks of machines may differ so much; ids of earlier alerts do no harm
# One try at a remote place: the library alone would try for three minutes.
_ONE_TRY = {"connect_timeout": "5s", "timeout": "10s", "max_retries": "1", "retry_timeout": "10s"}
# Part of a message of the library, as it lacks codes → a word of SINK_REASONS; the first match counts.
_REASONS = (
    ("503 ", "busy"), ("429 ", "busy"), ("SlowDown", "busy"), ("500 ", "busy"), ("502 ", "busy"), ("504 ", "busy"),
    ("403 ", "access"), ("401 ", "access"), ("privileges", "access"), ("ermission denied", "access"),
    ("NoSuchBucket", "missing"), ("404 ", "missing"), ("error sending request", "no_answer"),
    ("timed out", "no_answer"),
)  # fmt: skip


class LakeSink:
    """The table at a place, which is made with the first alerts; `job` tells this job's numbers from others'.

    Raises: UsageError for a place with a user, a password or a query, which would come into messages.
    """

    def __init__(self, place: str, job: str) -> None:
        check_place(place, "give its credentials in the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        import deltalake  # noqa: PLC0415

        self._library = deltalake
        self._place, self._job = place, f"cep-{job}"
        self._options = _ONE_TRY if "://" in place else {}

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Commit the alerts, unless they are already there. An error leaves the table as it was. Raises: SinkError."""
        if alerts.num_rows == 0:
            return
        try:
            table = self._table()
            if table is not None and batch_id <= self._newest(table):
                self._check_is_there(table, alerts, batch_id)
                return
            number = self._library.Transaction(self._job, batch_id)
            self._library.write_deltalake(
                self._place if table is None else table, alerts, mode="append", schema_mode="merge",
                commit_properties=self._library.CommitProperties(app_transactions=[number]),
                storage_options=self._options,
            )  # fmt: skip
        except (self._library.exceptions.DeltaError, OSError, pa.ArrowException) as error:
            reason = next((word for text, word in _REASONS if text in str(error)), "refused")
            count = f"{alerts.num_rows} alerts of micro-batch {batch_id}"
            raise sink_away(count, f"the table {self._place}", _message(error), reason) from error

    def place(self) -> str:
        """Return an empty text: `recall` needs only the number in the table."""
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the ids of alerts in files written since `since_ms`, so that a restarted job does not send them again;
        no ids if no micro-batch came after `after`. `places` is not used here. Raises: SinkError."""
        try:
            table = self._table()
            newest = -1 if table is None else self._newest(table)
            if table is None or newest <= after:
                return Recalled(frozenset(), after)
            written = pa.table(table.get_add_actions(flatten=True))
            recent = written.filter(pc.greater_equal(_ms(written["modification_time"]), since_ms - _CLOCKS_DIFFER_MS))
            names = set(recent["path"].to_pylist())
            dataset: Any = table.to_pyarrow_dataset()
            files = [file for file in dataset.get_fragments() if any(file.path.endswith(name) for name in names)]
            ids = frozenset(alert_id for file in files for alert_id in file.to_table(columns=[_ID])[_ID].to_pylist())
            return Recalled(ids, newest)
        except (self._library.exceptions.DeltaError, OSError, pa.ArrowException) as error:
            raise SinkError(
                f"nobody can say which alerts have reached the table {self._place}: {_message(error)}; mend it, then "
                "start again: nothing is lost"
            ) from error

    def close(self) -> None:
        """Do nothing: nothing is open between writes."""

    def _table(self) -> DeltaTable | None:
        """Open the table; None if it does not exist.

        The library's `is_deltatable` would stop the job: it holds Python's lock until the place answers.
        """
        try:
            return self._library.DeltaTable(self._place, storage_options=self._options)
        except self._library.exceptions.TableNotFoundError:
            return None

    def _newest(self, table: DeltaTable) -> int:
        newest = table.transaction_version(self._job)
        return -1 if newest is None else newest

    def _check_is_there(self, table: DeltaTable, alerts: pa.Table, batch_id: int) -> None:
        alert_ids = set(alerts[_ID].to_pylist())
        dataset: Any = table.to_pyarrow_dataset()
        there = dataset.to_table(columns=[_ID], filter=pc.field(_ID).isin(list(alert_ids)))[_ID].to_pylist()
        others = len(alert_ids.difference(there))
        if others:
            raise SinkError(
                f"the table {self._place} has micro-batch {self._newest(table)} of {self._job}, and micro-batch "
                f"{batch_id} comes with {others} other alerts: another job of this name writes here, or its folder is "
                "an older one; give this one a checkpoint folder of another name, or restore the newer folder"
            )


def _message(error: Exception) -> str:
    return " ".join(_COLOR.sub("", str(error)).split()) or type(error).__name__


def _ms(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the times of files in milliseconds; releases of the library differ in their type."""
    return times if pa.types.is_integer(times.type) else times.cast(pa.timestamp("ms")).cast(pa.int64())
