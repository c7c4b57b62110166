"""The one JSON form of an alert."""

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cep.engine.alerts import ALERT_SCHEMA
from cep.sinks import json_form
from cep.sinks.json_form import json_lines
from tests.sinks.alerts import alert_table


def test_an_alert_in_full() -> None:
    (line,) = json_lines(alert_table(1, 1))
    assert line == (
        b'{"alert_id":"a1","rule_id":"card_testing","version":2,"epoch":5,"status":"live","severity":"high",'
        b'"priority":10,"score":80,"kind":"match","key":"c1","message":"Card c1: 3 probes",'
        b'"description":"Small declines, then a large approval.",'
        b'"measures":{"probes":3,"amount":"900.00"},'
        b'"events":[{"variable":"hit","event_id":"t1","event_time":"2026-03-01T00:00:01.500Z"}],'
        b'"match_start":"2026-03-01T00:00:00.000Z","match_end":"2026-03-01T00:00:01.500Z",'
        b'"detected_at":"2026-03-01T00:00:01.500Z","content_hash":"ff"}'
    )


def test_order_and_count_are_the_tables() -> None:
    ids = [json.loads(line)["alert_id"] for line in json_lines(alert_table(0, 2_500))]
    assert ids == [f"a{number}" for number in range(2_500)]


def test_no_alerts_no_lines() -> None:
    assert list(json_lines(ALERT_SCHEMA.empty_table())) == []


def test_the_largest_numbers_are_written_as_they_are() -> None:
    numbers = [-(2**63), 2**63 - 1, -10, -1, 0, 9, 10, None]
    lines = both_ways(pa.table({"n": pa.array(numbers, pa.int64())}))
    assert lines == [orjson.dumps({"n": number}) for number in numbers]


DAY_MS = 86_400_000
OFTEN_NOTHING = ("origins", "history_cut", "history_folded", "history_from", "unconfirmed", "flawed")
TEXTS = st.one_of(st.sampled_from(('a"b', "\\", "\x00\n\x1f\x7f", "é😀", "", "plain")), st.text(max_size=4))
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 hypothesis adds it


def plain(alert: dict[str, Any]) -> bytes:
    """Return the line of one alert from its Python values."""

    def written(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if isinstance(value, list):
            return [{name: written(inner) for name, inner in item.items()} for item in value]
        return value

    columns = {n: written(v) for n, v in alert.items() if v or n not in OFTEN_NOTHING}
    return orjson.dumps(columns | {"measures": orjson.Fragment(alert["measures"])})


def both_ways(table: pa.Table) -> list[bytes]:
    """Return the lines, which orjson and the kernel write alike."""
    by_kernel = [line for batch in table.to_batches() for line in json_form._many_lines(batch)]
    assert [line for batch in table.to_batches() for line in json_form._few_lines(batch)] == by_kernel
    assert list(json_lines(table)) == by_kernel
    return by_kernel


@settings(max_examples=50)
@given(st.data())
def test_each_line_is_that_of_its_alert_alone(data: st.DataObject) -> None:
    by_type = {
        pa.string(): st.none() | TEXTS,
        pa.int32(): st.none() | st.integers(-(2**31), 2**31 - 1),
        pa.bool_(): st.booleans(),
        pa.timestamp("ms", "UTC"): TIMES.map(
            lambda moment: moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)
        ),
    }
    bound = st.fixed_dictionaries(
        {"variable": TEXTS, "event_id": TEXTS, "event_time": by_type[pa.timestamp("ms", "UTC")]}
    )
    columns: dict[str, st.SearchStrategy[Any]] = {
        field.name: by_type.get(field.type, st.lists(bound, max_size=3)) for field in ALERT_SCHEMA
    }
    origin = st.fixed_dictionaries({"place": st.integers(0, 9), "level": st.integers(2, 9)})
    origins = st.tuples(origin, bound).map(lambda parts: parts[0] | parts[1])
    columns |= {"measures": st.just('{"n":1}'), "history_from": st.none() | columns["history_from"]}
    columns["origins"] = st.none() | st.lists(origins, min_size=1, max_size=3)
    rows = data.draw(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=4))
    table = pa.Table.from_pylist(rows, schema=ALERT_SCHEMA)
    expected = [plain(alert) for alert in table.to_pylist()]
    assert both_ways(table) == expected
    assert both_ways(table.slice(1)) == expected[1:]
    assert both_ways(pa.concat_tables([table.slice(1), table])) == expected[1:] + expected


@pytest.mark.parametrize("year", [-5, 0, 10_000, 250_000])
def test_a_year_that_python_lacks_is_written_by_the_kernel(year: int) -> None:
    times = pa.array([int((year - 1970) * 365.2425 * DAY_MS)], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    assert len(both_ways(pa.table({"time": times}))) == 1
