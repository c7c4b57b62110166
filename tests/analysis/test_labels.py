"""Labels of events, keys and episodes; leaks of labels; and chains of patterns."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cep.analysis.history import Events
from cep.analysis.labelled_events import LabelledEvents, key_field, label_events
from cep.analysis.labels import label_words, labels_of_column, labels_of_table, read_labels
from cep.analysis.measure import Measured, Terms, check_unread, measure, measure_files, warnings_of
from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MIN
from cep.base.secrets import secret_keys
from cep.columnar.batch import TEXT
from cep.columnar.mapping import mapping_of
from cep.columnar.tokens import token_of
from cep.lang.load import load_text
from cep.rulebook.deploy import deploy
from cep.sources.inputs import Records
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import DAY_MS, START_MS, deployed
from tests.bench.peer_data import upsert
from tests.columnar.protected import CARDS, VISA
from tests.columnar.protected import keys as keys  # noqa: PLC0414 a fixture
from tests.runners.laundering import circles, records, transfers

# Labels of events, keys and episodes, from columns and files, and the labels that are known on a date.

SCHEMA = deployed().schema


def events_of(*rows: tuple[str, int, float]) -> Events:
    """Return events t0, t1, … from (card, time, amount)."""
    return Events(
        SCHEMA,
        pa.array([f"t{number}" for number in range(len(rows))], TEXT),
        np.zeros(len(rows), np.int16),
        np.array([row[1] for row in rows], np.int64),
        {
            "card_id": pa.array([row[0] for row in rows], TEXT),
            "amount": pa.array([round(row[2] * 100) for row in rows], pa.int64()),
        },
    )


def marks_of(events: Events, rows: list[dict[str, Any]], **terms: Any) -> LabelledEvents:
    labels = labels_of_table(pa.Table.from_pylist(rows), SCHEMA, "labels")
    return label_events(events, labels, key_field(labels, (("card_id",),)), "amount", **terms)


def test_an_episode_is_one_fraud_and_a_label_alone_is_another() -> None:
    events = events_of(("a", 1, 10), ("a", 5, 20), ("b", 7, 30), ("b", 9, 40))
    rows: list[dict[str, Any]] = [
        {"event_id": "t1", "episode": "x"},
        {"event_id": "t0", "episode": "x"},
        {"event_id": "t3", "episode": None},
        {"event_id": "nobody", "episode": "x"},
    ]
    labelled = marks_of(events, rows)
    assert labelled.fraud.tolist() == [0, 0, -1, 1]
    assert labelled.amount.tolist() == [30, 40]
    assert (labelled.first_ms.tolist(), labelled.last_ms.tolist()) == ([1, 9], [5, 9])
    assert labelled.unmatched_count == 1


def test_a_label_says_its_own_amount_kind_and_verdict() -> None:
    events = events_of(("a", 1, 10), ("a", 5, 20), ("b", 7, 30))
    rows: list[dict[str, Any]] = [
        {"event_id": "t0", "label": "mule", "amount": 99.5},
        {"event_id": "t1", "label": "no", "amount": None},
        {"event_id": "t2", "label": "1", "amount": None},
    ]
    labelled = marks_of(events, rows, as_of_ms=7, maturity_ms=100)
    assert (labelled.fraud.tolist(), labelled.immature_count) == ([-1, -1, -1], 2), "too recent, whatever is known"
    assert labelled.is_mature.tolist() == [False, False, False]
    labelled = marks_of(events, rows, as_of_ms=7, maturity_ms=0)
    assert labelled.fraud.tolist() == [0, -1, 1]
    assert labelled.kind == ("mule", "")
    assert labelled.amount.tolist() == [99.5, 30]


def test_what_is_reported_later_is_not_known() -> None:
    events = events_of(("a", 1, 10), ("a", 5, 20), ("b", 7, 30), ("b", 90, 30))
    rows = [{"event_id": "t0", "reported_at": 4}, {"event_id": "t1", "reported_at": 20},
            {"event_id": "t3", "reported_at": 9}]  # fmt: skip
    labelled = marks_of(events, rows, as_of_ms=10)
    assert labelled.fraud.tolist() == [0, -1, -1, -1], "the last event is after the date"
    assert (labelled.later_count, labelled.maturity_ms) == (1, 3)
    assert labelled.is_mature.tolist() == [True, True, True, False]
    assert marks_of(events, rows).as_of_ms == 90, "all that is there"


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=25),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-5, 25), st.integers(-5, 25)), min_size=1, max_size=5),
    st.booleans(),
)
def test_labels_of_keys_are_of_their_events_between_two_times(
    given_events: list[tuple[str, int]], spans: list[tuple[str, int, int]], named: bool
) -> None:
    events = events_of(*((card, time_ms, 1) for card, time_ms in given_events))
    rows = [{"card_id" if named else "key": card, "from": low, "to": high} for card, low, high in spans]
    labelled = marks_of(events, rows)
    expected = [
        next((number for number, (card, low, high) in enumerate(spans) if card == key and low <= time_ms <= high), -1)
        for key, time_ms in given_events
    ]
    used = sorted({number for number in expected if number >= 0})
    assert [used[span] if span >= 0 else -1 for span in labelled.fraud.tolist()] == expected


def test_keys_need_a_field_where_rules_have_several() -> None:
    labels = labels_of_table(pa.table({"key": ["a"]}), SCHEMA, "labels")
    assert labels.from_ms[0] == TIME_MS_MIN
    with pytest.raises(UsageError, match="card_id; shop; name it by its field"):
        key_field(labels, (("card_id",), ("shop",)))


@pytest.mark.usefixtures("keys")
def test_keys_of_card_numbers_are_compared_as_tokens() -> None:
    (key,) = secret_keys()
    token = token_of(key, "pan", VISA, {key.id})
    events = Events(CARDS, pa.array(["t0"], TEXT), np.zeros(1, np.int16), np.zeros(1, np.int64),
                    {"card": pa.array([token], TEXT)})  # fmt: skip
    labels = labels_of_table(pa.table({"card": [VISA]}), CARDS, "labels")
    assert label_events(events, labels, "card", None).fraud.tolist() == [0]


def test_keys_of_an_enum_are_its_symbols() -> None:
    schema = load_text("event pay { tx_id id  event_time time  shop enum(web, till) }").schema
    columns = {"shop": pa.array([0, 1, 1], pa.int64())}
    events = Events(schema, pa.array(["a", "b", "c"], TEXT), np.zeros(3, np.int16), np.arange(3), columns)
    labels = labels_of_table(pa.table({"shop": ["till", "moon"]}), schema, "labels")
    labelled = label_events(events, labels, "shop", None)
    assert (labelled.fraud.tolist(), labelled.unmatched_count) == ([-1, 0, 0], 1)


def test_a_column_of_kinds() -> None:
    table = pa.table({"tx_id": [1, 2, 3, 4], "fraud": ["0", "leaked", None, "true"]})
    labels = labels_of_column([table], "fraud", SCHEMA, {"leaked": True})
    assert labels.keys.to_pylist() == ["2", "4"]
    assert labels.kind.to_pylist() == ["leaked", None]


def test_words_of_labels() -> None:
    """A usual word for honest is not a fraud, and an unknown word is an error."""
    honest = ["none", "legit", "Genuine", "normal", "OK", "N/A", "not fraud", "non-fraud", "0.0", "", None, "FALSE"]
    fraud = ["Fraud", "1", "TRUE", "y", "stolen_card", "Account takeover"]
    table = pa.table({"tx_id": range(len(honest + fraud)), "fraud": honest + fraud})
    labels = labels_of_column([table], "fraud", SCHEMA)
    assert labels.keys.to_pylist() == [str(number) for number in range(len(honest), len(honest + fraud))]
    assert labels.kind.to_pylist() == [None, None, None, None, "stolen_card", "Account takeover"]
    doubtful = pa.table({"tx_id": range(4), "fraud": ["review", "odd", "review", "legit"]})
    with pytest.raises(UsageError, match=r"'review' \(2\), 'odd' \(1\).*--label-words review=honest.* legit, "):
        labels_of_column([doubtful], "fraud", SCHEMA)
    letters = pa.table({"tx_id": ["0", "1", "2"], "fraud": ["F", "G", "G"]})
    with pytest.raises(UsageError, match=r"'G' \(2\), 'F' \(1\)"):
        labels_of_column([letters], "fraud", SCHEMA)
    said = label_words(["G=honest", "F=fraud"])
    assert labels_of_column([letters], "fraud", SCHEMA, said).keys.to_pylist() == ["0"]
    true_or_false = pa.table({"tx_id": ["0", "1"], "fraud": ["F", "T"]})
    assert labels_of_column([true_or_false], "fraud", SCHEMA).keys.to_pylist() == ["1"]
    words = label_words(["Review=honest", "*=fraud"])
    labels = labels_of_column([doubtful], "fraud", SCHEMA, words)
    assert (labels.keys.to_pylist(), labels.kind.to_pylist()) == (["1"], ["odd"])
    with pytest.raises(UsageError, match="write WORD=fraud or WORD=honest"):
        label_words(["review=maybe"])
    with pytest.raises(UsageError, match="REVIEW=fraud: the word means the other verdict, too"):
        label_words(["review=honest", "REVIEW=fraud"])
    many = pa.table({"tx_id": range(1_200), "fraud": [f"text {number}" for number in range(1_200)]})
    with pytest.raises(UsageError, match="and more"):
        labels_of_column([many], "fraud", SCHEMA)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_of_labels(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"labels{suffix}"
    reported_at = "2026-03-01T00:00:01Z"
    if suffix == ".csv":
        path.write_text(f"event_id,reported_at,amount\n17,{reported_at},2.50\n18,,\n")
    elif suffix == ".jsonl":
        path.write_text(f'{{"event_id": "17", "reported_at": "{reported_at}", "amount": 2.5}}\n{{"event_id": "18"}}\n')
    else:
        times = pa.array([START_MS + 1_000, None], pa.timestamp("ms", "UTC"))
        pa.parquet.write_table(pa.table({"event_id": [17, 18], "reported_at": times, "amount": [2.5, None]}), path)
    labels = read_labels(str(path), tmp_path, SCHEMA)
    assert labels.keys.to_pylist() == ["17", "18"]
    assert labels.reported_ms.tolist() == [START_MS + 1_000, TIME_MS_MIN]
    assert labels.amount[0] == 2.5
    assert labels.has_reports


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"label": [1]}), "labels has no column event_id or key"),
        (pa.table({"event_id": ["t1"], "reported_at": ["yesterday"]}), "reported_at"),
        (pa.table({"event_id": ["t1"], "reported_at": [1.5]}), "give times with a zone"),
        (pa.table({"event_id": ["t1"], "amount": ["much"]}), "amount is no number"),
        (pa.table({"event_id": ["t1", None]}), "1 rows without event_id"),
        (pa.table({"event_id": ["t1"], "reported_at": [1_772_319_660]}), "1772319660, which are not milliseconds"),
        (pa.table({"event_id": ["t1"], "reported_at": [1_772_319_660_000_000_000]}), "are not milliseconds"),
        (pa.table({"event_id": ["t1"], "reported_at": pa.array([2**63], pa.uint64())}), "are not milliseconds"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(table: pa.Table, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        labels_of_table(table, SCHEMA, "labels")


def test_a_zero_in_any_form_is_no_fraud() -> None:
    zeros = (
        pa.array([-0.0, 0.0, float("nan"), None]),
        pa.array(["-0.0", "0", "0.00", "NaN"]),
        pa.array([0, 0, None, 0]),
    )
    for label in zeros:
        table = pa.table({"event_id": ["a", "b", "c", "d"], "label": label})
        assert not labels_of_table(table, SCHEMA, "labels").is_fraud.any()


@pytest.mark.parametrize("form", ["column", "records", "events"])
def test_a_label_of_a_record_is_one_fraud_of_all_its_views(form: str) -> None:
    """Record 9 is the events 9#sent and 9#received; its money is lost once."""
    both = events_of(("a", 1, 10), ("b", 1, 10), ("a", 2, 20), ("b", 2, 20))
    ids = pa.array(["9#sent", "9#received", "10#sent", "10#received"], TEXT)
    events = replace(both, event_id=ids)
    rows = {
        "column": [{"event_id": "9#sent"}, {"event_id": "9#received"}],
        "records": [{"event_id": "9"}],
        "events": [{"event_id": "9#received"}],
    }[form]
    labels = replace(labels_of_table(pa.Table.from_pylist(rows), SCHEMA, "labels"), views=("sent", "received"))
    labelled = label_events(events, labels, None, "amount")
    assert labelled.fraud.tolist() == [0, 0, -1, -1]
    assert (labelled.amount.tolist(), labelled.money.tolist()) == ([10], [10, 0, 0, 0])
    assert labelled.record.tolist() == [0, 0, 1, 1]
    assert labelled.unmatched_count == 0


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_label_inside_other_values_is_read_by_its_path(suffix: str, tmp_path: Path) -> None:
    rows = [
        {"tx_id": f"t{number}", "event_time": f"2026-03-01T10:00:0{number}Z", "card_id": "c", "amount": 1.0,
         "meta": {"labels": {"fraud": number == 2}}}
        for number in range(4)
    ]  # fmt: skip
    path = tmp_path / f"events.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    labels = read_labels("meta.labels.fraud", path, SCHEMA)
    assert labels.keys.to_pylist() == ["t2"]
    mapping = mapping_of(["shop=meta.labels.fraud"])
    assert read_labels("meta.labels.fraud", Records((path,), mapping), SCHEMA).fields == ("shop",)
    with pytest.raises(UsageError, match=r"no column meta\.labels\.nobody"):
        read_labels("meta.labels.nobody", path, SCHEMA)


# Rules that read the label are refused; fields that reveal it, and histories of frauds alone, are named.

SOURCE = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  verdict     enum(clear, blocked)
  reason      string?
  is_fraud    bool
}
pattern large by card_id { seq hit where hit: pay amount > 100.00 }
pattern sure by card_id { seq hit where hit: pay is_fraud }
"""


def history(frauds: int, count: int = 200) -> pa.Table:
    """Return a history: frauds have amounts from 500.00 on, a reason, and mostly a verdict that was changed later."""
    return pa.table({
        "tx_id": [f"t{number}" for number in range(count)],
        "event_time": pa.array([START_MS + n * DAY_MS // 20 for n in range(count)], pa.timestamp("ms", "UTC")),
        "card_id": [f"c{number % 7}" for number in range(count)],
        "amount": [500.0 + number if number < frauds else 1.0 + number / 2 for number in range(count)],
        "verdict": ["blocked" if number < frauds - 1 else "clear" for number in range(count)],
        "reason": [f"note {number}" if number < frauds else None for number in range(count)],
        "is_fraud": [number < frauds for number in range(count)],
    })  # fmt: skip


def measured(table: pa.Table, folder: Path, rule: str, terms: Terms, console: Console) -> Measured:
    pq.write_table(table, folder / "events.parquet")
    deployment = deploy([upsert(SOURCE, rule)])
    labels = labels_of_column([table], "is_fraud", deployment.schema)
    pieces_of = partial(read_pieces, folder / "events.parquet")
    return measure(deployment, pieces_of, labels, terms, console, ("amount", "verdict", "reason"))


def test_a_rule_that_reads_the_label_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    table, quiet = history(20), Console(quiet=True)
    with pytest.raises(UsageError, match=r"rule sure reads `is_fraud`, the column of the labels.*--allow-label"):
        measured(table, tmp_path, "sure", Terms(), quiet)
    allowed = measured(table, tmp_path, "sure", Terms(allow_label=True), quiet)
    assert allowed.figures.together.precision.value == 1.0
    labels = labels_of_column([table], "is_fraud", allowed.history.deployment.schema)
    check_unread(allowed.history.deployment, replace(labels, fields=()))


@pytest.mark.parametrize(("maturity_ms", "least"), [(0, 500), (3 * DAY_MS // 2, 530)])
def test_fields_that_separate_frauds_are_named(maturity_ms: int, least: int, tmp_path: Path) -> None:
    """Also if half of the frauds are so recent that they do not count: they have the values, too."""
    errors = Console(record=True, width=300, file=(tmp_path / "errors").open("w"))
    table = history(60)
    if maturity_ms:  # the frauds come last
        table = table.set_column(1, "event_time", table["event_time"][::-1])
    measurement = measured(table, tmp_path, "large", Terms(maturity_ms=maturity_ms), errors)
    printed = errors.export_text()
    assert f"warning: `amount >= {least}.00` alone separates nearly all frauds" in printed
    assert "warning: `verdict == blocked` alone separates" in printed
    assert "warning: `reason is not null` alone separates" in printed
    few = measured(history(9), tmp_path, "large", Terms(), Console(quiet=True))
    labels = labels_of_column([history(9)], "is_fraud", few.history.deployment.schema)
    assert list(warnings_of(few.history.events, few.labelled, ("amount",), labels)) == []
    turned = measurement.labelled.fraud * 0
    (line,) = warnings_of(measurement.history.events, replace(measurement.labelled, fraud=turned), ("amount",), labels)
    assert line.startswith("200 of 200 events are fraud by the column is_fraud")


# Labels of source events, and alerts of patterns that read the derived events of other patterns.


def first_ids(table: pa.Table) -> set[str]:
    """Return the ids of the transfers that a circle may begin with, from all pairs that pass money on."""
    rows = [{**row, "ms": round(row["event_time"].timestamp() * 1_000)} for row in table.to_pylist()]
    begun = {(origin, via, target) for origin, via, target, _ in circles(table)}
    ids = set()
    for one, two in product(rows, repeat=2):
        passed_on = (one["payer"], one["payee"], two["payee"]) in begun and one["payee"] == two["payer"]
        if passed_on and one["amount"] >= two["amount"] and 0 < two["ms"] - one["ms"] < 600_000:
            ids.add(one["tx_id"])
    return ids


def measured_chain(folder: Path, ids: set[str]) -> Measured:
    table = transfers(1, 120)
    pq.write_table(table, folder / "transfers.parquet")
    pcsv.write_csv(pa.table({"event_id": sorted(ids)}), folder / "labels.csv")
    return measure_files(
        deploy(records()), folder / "transfers.parquet", str(folder / "labels.csv"), Terms(), Console(quiet=True)
    )


def test_an_alert_of_a_chain_finds_the_frauds_it_begins_with(tmp_path: Path) -> None:
    """The first transfer completes no produced event of the alert. It is only one of the events below them."""
    ids = first_ids(transfers(1, 120))
    measurement = measured_chain(tmp_path, ids)
    figures = measurement.figures.together
    assert measurement.judged.names == ("circle",)
    assert measurement.judged.is_right.all()
    assert len(measurement.judged.is_right) > 0
    assert figures.precision.value == pytest.approx(1.0)
    rows = {measurement.history.events.event_id[row].as_py() for row in measurement.judged.bound_event_row.tolist()}
    assert rows & ids
    assert all(not event_id.count("~") for event_id in rows)


def test_an_alert_of_a_chain_is_wrong_where_nothing_behind_it_is_bad(tmp_path: Path) -> None:
    table = transfers(1, 120)
    events = set(table["tx_id"].to_pylist())
    everything = measured_chain(tmp_path, first_ids(table))
    bound = {everything.history.events.event_id[row].as_py() for row in everything.judged.bound_event_row.tolist()}
    others = events - bound
    assert others
    assert not measured_chain(tmp_path, others).judged.is_right.any()
