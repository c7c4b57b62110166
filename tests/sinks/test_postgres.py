"""Alerts in a real PostgreSQL: each once, whole micro-batches, and a server that goes away and comes back."""

from collections.abc import Iterator

import orjson
import psycopg
import pyarrow as pa
import pytest

from cep.base.errors import SinkAwayError, SinkError, UsageError
from cep.sinks.json_form import json_lines
from cep.sinks.postgres import PostgresSink
from tests.real_postgres import IS_THERE, RealPostgres
from tests.sinks.alerts import alert_table

pytestmark = pytest.mark.skipif(not IS_THERE, reason="no PostgreSQL on the path")


@pytest.fixture(scope="module")
def server() -> Iterator[RealPostgres]:
    postgres = RealPostgres()
    yield postgres
    postgres.close()


@pytest.fixture
def postgres(server: RealPostgres) -> RealPostgres:
    with psycopg.connect(server.address) as connection:
        connection.execute("drop table if exists cep_alerts")
    return server


def stored(postgres: RealPostgres, columns: str = "alert::text") -> list[tuple[object, ...]]:
    with psycopg.connect(postgres.address) as connection:
        return connection.execute(f"select {columns} from cep_alerts order by detected_at").fetchall()


def test_an_alert_that_comes_again_is_there_once(postgres: RealPostgres) -> None:
    sink = PostgresSink(postgres.address)
    sink.write(alert_table(0, 3), 0)
    sink.write(alert_table(0, 3), 0)
    sink.write(alert_table(2, 2), 1)  # from a savepoint: under another number
    sink.write(alert_table(0, 0), 2)
    sink.close()
    assert stored(postgres) == [(line.decode(),) for line in json_lines(alert_table(0, 4))]
    columns = "alert_id, rule_id, version, severity, kind, key, alert->'measures'->>'probes'"
    assert stored(postgres, columns)[0] == ("a0", "card_testing", 2, "high", "match", "c1", "3")


def test_a_server_in_trouble_loses_nothing(postgres: RealPostgres) -> None:
    """The server is stopped; the table is locked, dropped, forbidden: the reason is named, and a retry works."""
    sink = PostgresSink(postgres.address, 200)
    reasons: list[str] = []

    def refused(first: int) -> None:
        with pytest.raises(SinkAwayError, match=r"did not reach PostgreSQL at .*: nothing is lost") as error:
            sink.write(alert_table(first, 1), first)
        reasons.append(error.value.reason)

    sink.write(alert_table(0, 1), 0)
    postgres.stop()
    refused(1)
    postgres.start()
    sink.write(alert_table(1, 1), 1)
    with psycopg.connect(postgres.address) as connection:
        connection.execute("lock table cep_alerts in access exclusive mode")
        refused(2)
        connection.execute("alter table cep_alerts add check (alert_id <> 'a3')")
    sink.write(alert_table(2, 1), 2)
    refused(3)
    with psycopg.connect(postgres.address) as connection:
        connection.execute("drop table cep_alerts")
    sink.write(alert_table(3, 1), 3)
    with psycopg.connect(postgres.address) as connection:
        connection.execute("drop table cep_alerts")
    refused(4)
    sink.write(alert_table(4, 1), 4)
    sink.close()
    assert reasons == ["no_answer", "locked", "refused", "missing"]
    assert stored(postgres, "alert_id") == [("a4",)]


def test_all_of_a_micro_batch_or_nothing(postgres: RealPostgres) -> None:
    sink = PostgresSink(postgres.address)
    sink.write(alert_table(0, 1), 0)
    with psycopg.connect(postgres.address) as connection:
        connection.execute("alter table cep_alerts add check (alert_id <> 'a2')")
    with pytest.raises(SinkError, match=r"2 alerts of micro-batch 1 .* violates check .* nothing is lost"):
        sink.write(alert_table(1, 2), 1)
    sink.close()
    assert stored(postgres, "alert_id") == [("a0",)]


def test_text_that_postgresql_cannot_hold(postgres: RealPostgres) -> None:
    table = alert_table(0, 1)
    table = table.set_column(table.schema.get_field_index("key"), "key", pa.array(["c\0"]))
    sink = PostgresSink(postgres.address)
    sink.write(table, 0)
    sink.close()
    ((key, alert),) = stored(postgres, "key, alert::text")
    assert key == "c\ufffd"
    assert orjson.loads(str(alert))["key"] == "c\0"


def test_addresses_that_are_refused() -> None:
    with pytest.raises(UsageError, match="PGPASSWORD") as refused:
        PostgresSink("postgresql://cep:hidden@127.0.0.1/alerts")
    assert "hidden" not in str(refused.value)
    with pytest.raises(UsageError, match="postgresql://HOST") as refused:
        PostgresSink("postgresql://cep:hidden@127.0.0.1/alerts?nonsense=1")
    assert "hidden" not in str(refused.value)
    with pytest.raises(UsageError, match=r"the sslpassword in the address .*PGSERVICE") as refused:
        PostgresSink("postgresql://cep@127.0.0.1/alerts?sslkey=k.pem&sslpassword=hidden")
    assert "hidden" not in str(refused.value)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(SinkError, match=r"1 alerts of micro-batch 0 did not reach PostgreSQL at 127.0.0.1"):
        PostgresSink("postgresql://cep@127.0.0.1:1/alerts", 300).write(alert_table(0, 1), 0)
