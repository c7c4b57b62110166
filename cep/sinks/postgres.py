"""Alerts → rows of a PostgreSQL table, each alert once: `insert … on conflict (alert_id) do nothing`.

    cep_alerts    alert_id (primary key), rule_id, version, severity, kind, key, detected_at, alert

The table is made if it is not there, in the first schema of the connection's search path. `alert` is the alert's JSON
(json_form.py), byte for byte. A micro-batch is one transaction, and one that comes again finds its rows. libpq takes
missing parts of the address, such as the password, from PGUSER, PGPASSWORD, PGSSLMODE, ~/.pgpass and the like.

A write is one try. Each failure (no server, a locked or missing table, a missing right) concerns the server and none
concerns an alert, so the sink raises SinkAwayError and keeps no connection.
Tested by: tests/sinks/test_postgres.py, tests/sinks/test_contract.py, tests/runners/spark/test_live_crash.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cep.base.errors import UsageError
from cep.base.limits import POSTGRES_WAIT_MS_MAX
from cep.sinks.base import sink_away
from cep.sinks.json_form import json_lines

if TYPE_CHECKING:
    import psycopg

SCHEMES = ("postgresql://", "postgres://")
_NO_SERVER = "no_answer"
# By SQLSTATE, or its class, the first two characters (PostgreSQL's documentation, appendix A).
_REASONS = {
    "": _NO_SERVER, "08": _NO_SERVER, "57": _NO_SERVER, "28": "access", "42501": "access", "42P01": "missing",
    "3D": "missing", "55P03": "locked", "57014": "locked", "53": "busy", "54": "too_large",
}  # fmt: skip
_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
_COLUMNS = ("alert_id", "rule_id", "version", "severity", "kind", "key", "detected_at")
_TABLE = """create table if not exists cep_alerts (
    alert_id text primary key, rule_id text not null, version integer not null, severity text not null,
    kind text not null, key text not null, detected_at timestamptz not null, alert json not null)"""
_INSERT = """insert into cep_alerts (alert_id, rule_id, version, severity, kind, key, detected_at, alert)
    values (%s, %s, %s, %s, %s, %s, %s, %s) on conflict (alert_id) do nothing"""


class PostgresSink:
    """Rows in the database at `postgresql://…`. Raises: UsageError for another address."""

    def __init__(self, address: str, wait_ms_max: int = POSTGRES_WAIT_MS_MAX) -> None:
        import psycopg  # noqa: PLC0415 it searches the machine for libpq, and few jobs have such a sink
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

        self._library = psycopg
        try:
            parts = conninfo_to_dict(address)
        except psycopg.ProgrammingError:
            # Its own message repeats the address, which may contain a secret.
            raise UsageError("the address of a PostgreSQL is postgresql://HOST:PORT/DATABASE") from None
        for name in sorted(_SECRETS & parts.keys()):
            instead = "as PGPASSWORD or in ~/.pgpass" if name == "password" else "in a service file (PGSERVICE)"
            raise UsageError(f"the {name} in the address is seen by others; give it {instead}")
        self._place = f"PostgreSQL at {parts.get('host', 'this machine')}, database {parts.get('dbname', '(default)')}"
        self._address = address
        self._wait_ms_max = wait_ms_max
        self._connection: psycopg.Connection[Any] | None = None

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Insert the alerts into the table; it ignores the ones whose id it has already. Raises: SinkAwayError."""
        if alerts.num_rows == 0:
            return
        rows = _rows(alerts)
        try:
            self._insert(rows)
        except self._library.Error as error:
            self.close()
            sqlstate = error.sqlstate or ""
            reason = _REASONS.get(sqlstate) or _REASONS.get(sqlstate[:2], "refused")
            error_text = " ".join(str(error).split()) or type(error).__name__
            count = f"{len(rows)} alerts of micro-batch {batch_id}"
            raise sink_away(count, self._place, error_text, reason) from error

    def close(self) -> None:
        """Close the connection; a later write opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _insert(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if self._connection is None:
            wait_s = max(2, self._wait_ms_max // 1_000)  # two seconds are the least that libpq knows
            self._connection = self._library.connect(self._address, connect_timeout=wait_s, autocommit=True)
            self._connection.execute(f"set lock_timeout = {self._wait_ms_max}")
            self._connection.execute(_TABLE)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(_INSERT, rows)


def _rows(alerts: pa.Table) -> list[tuple[Any, ...]]:
    """Return for each alert the values of the columns, and its JSON."""
    columns = [alerts[name].to_pylist() for name in _COLUMNS]
    # Text of a PostgreSQL cannot hold the character 0, which a key may have; the JSON writes it as an escape.
    columns[_COLUMNS.index("key")] = [key.replace("\0", "\ufffd") for key in columns[_COLUMNS.index("key")]]
    texts = (line.decode() for line in json_lines(alerts))
    return list(zip(*columns, texts, strict=True))
