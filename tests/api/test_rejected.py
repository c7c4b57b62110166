"""Python names rejected records in a warning, in the notebook's view, and in an error with `strict`."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cep

EVENT = "event tx { i id  event_time time  card string  amount decimal(2) }"
PATTERN = f"{EVENT}\npattern p by card {{ seq a -> b within 1 h  where a: tx amount > 1.00  b: tx amount > 2.00 }}"
ROWS = [
    {"i": str(n), "event_time": f"2026-01-01T00:00:0{n}Z", "card": "c", "amount": "3.00", "fraud": n == 1}
    for n in range(8)
]
BAD = [*ROWS, {**ROWS[0], "i": None}, {**ROWS[0], "i": None}]
REASON = r"2 of 10 records \(20.00%\) were rejected, 2 of them as missing_field: field `i` is missing or null"


def rules() -> cep.Rules:
    return cep.parse(PATTERN)


def frame(rows: list[dict[str, Any]] = BAD) -> pa.Table:
    return pa.Table.from_pylist(rows)


CALLS: dict[str, Any] = {
    "match": lambda **how: rules().match(frame(), **how),
    "diff": lambda **how: rules().diff(rules(), frame(), **how),
    "backtest": lambda **how: rules().backtest(frame(), "fraud", **how),
    "suggest": lambda **how: rules().suggest(frame(), "fraud", "card", **how),
    "why_not": lambda **how: rules().why_not("p", "c", frame(), **how),
    "features": lambda **how: cep.features(frame(), {"n": "count(tx over 1 h by card)"}, declare=EVENT, **how),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_warns_in_the_line_of_its_caller(name: str) -> None:
    with pytest.warns(cep.RejectedRecordsWarning, match=REASON) as warnings:
        CALLS[name]()
    (warning,) = warnings
    assert warning.filename == __file__


@pytest.mark.parametrize("name", CALLS)
def test_strict_makes_it_an_error(name: str) -> None:
    with pytest.raises(cep.RejectedRecordsError, match=REASON) as caught:
        CALLS[name](strict=True)
    assert caught.value.code == "rejected_records"


def test_good_records_are_no_news() -> None:
    assert len(rules().match(frame(ROWS), strict=True)) == 4


def test_a_notebook_shows_the_top_reason() -> None:
    rows = [{**row, "amount": "x"} for row in ROWS]
    with pytest.warns(cep.RejectedRecordsWarning):
        alerts = rules().match(frame(rows))
    for text in (repr(alerts), alerts._repr_html_()):
        assert "8 of 8 records (100.00%) were rejected, 8 of them as wrong_value: field `amount`: " in text


# In place of the second record: without an id, and followed by a line that is no record.
JSON_LINES = {
    "broken": b'{"i": null}\n{broken', "two objects": b'{"i": null}\n{"i": "8"} {"i": "9"}',
    "bytes": b'{"i": null, "card": "\xff"}', "half": b'{"i": null, "card": "\\ud83d"}',
}  # fmt: skip


@pytest.mark.parametrize("form", ["frame", "csv", *JSON_LINES])
def test_features_of_a_rejected_record_are_null(form: str, tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "i": None}, ROWS[2]]
    events: Any = pa.Table.from_pylist(rows)
    if form in JSON_LINES:
        events = tmp_path / "e.jsonl"
        events.write_bytes(b"\n".join([json.dumps(rows[0]).encode(), JSON_LINES[form], json.dumps(rows[2]).encode()]))
    if form == "csv":
        events = tmp_path / "e.csv"
        lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
        events.write_text("\n".join([",".join(rows[0]), *lines, "one,two,three"]) + "\n")
    with pytest.warns(cep.RejectedRecordsWarning, match="of them as"):
        frame = cep.features(events, {"n": "count(tx over 1 h by card)"}, declare=EVENT)
    assert frame["n"].to_pylist() == [1, None, 2]
    with pytest.warns(cep.RejectedRecordsWarning):
        cut = cep.features(events, {"n": "count(tx over 1 h by card)"}, declare=EVENT, since="2026-01-01T00:00:01Z")
    assert cut["n"].to_pylist() == [1]


def test_features_without_a_record_that_can_be_read() -> None:
    rows = [{**row, "i": None} for row in ROWS]
    with pytest.raises(cep.CepError, match=r"no event can be read: 8 of 8 records .* field `i` is missing"):
        cep.features(frame(rows), {"n": "count(tx over 1 h by card)"}, declare=EVENT)


def test_features_of_views_are_null_for_a_rejected_record() -> None:
    rows = [{**ROWS[0], "to": None}, {**ROWS[1], "i": None, "to": "d"}, {**ROWS[2], "to": "d"}]
    columns = {"a/card": "card", "b/card": "to"}
    with pytest.warns(cep.RejectedRecordsWarning, match="field `i` is missing"):
        features = cep.features(frame(rows), {"n": "count(tx over 1 h by card)"}, declare=EVENT, columns=columns)
    assert features["n_a"].to_pylist() == [1, None, 2]
    assert features["n_b"].to_pylist() == [None, None, 1]


@pytest.mark.parametrize("form", ["text", "naive", "file"])
def test_times_in_the_hour_that_clocks_skip_are_counted(form: str, tmp_path: Path) -> None:
    texts = ["2026-03-29 01:59:00", "2026-03-29 02:10:00", "2026-03-29 02:50:00", "2026-03-29 03:00:00"]
    events: Any = frame([{**ROWS[number], "event_time": text} for number, text in enumerate(texts)])
    if form == "naive":
        times = events["event_time"].cast(pa.timestamp("us"))
        events = events.set_column(events.column_names.index("event_time"), "event_time", times)
    if form == "file":
        rows, events = events.to_pylist(), tmp_path / "e.jsonl"
        events.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rules().match(events, tz="Europe/Berlin").counters["times_skipped"] == 2
    with pytest.warns(UserWarning, match="^2 local times are in an hour that the clocks of their zone skip"):
        cep.features(events, {"n": "count(tx over 1 h by card)"}, declare=EVENT, tz="Europe/Berlin")


@pytest.mark.parametrize(("name", "reason"), [("match", "is read yet"), ("match_stream", "has no end")])
def test_spark_names_the_way_to_rejected_records(name: str, reason: str) -> None:
    frame_of_spark = type("DataFrame", (), {"__module__": "pyspark.sql.frame", "isStreaming": name != "match"})
    how: Any = {"strict": True}
    with pytest.raises(cep.CepError, match=reason) as caught:
        getattr(rules(), name)(frame_of_spark(), **how)
    assert "set_aside(events)" in str(caught.value)
