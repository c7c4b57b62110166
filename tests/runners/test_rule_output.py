"""Alerts that a job's rules hold back are recorded, and a repeated micro-batch ends in the same place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from cep.rulebook.rulebook import Rulebook
from cep.runners.rule_output import RuleOutput
from cep.step.rule_status import rule_status
from tests.rulebook.records import new_book, upsert
from tests.rulebook.test_suppression import alert, table


def status_of(**changes: Any) -> dict[str, Any]:
    book: Rulebook = new_book()
    book.apply(upsert(1, "a", **changes), None)
    return rule_status(book)


def ids(alerts: pa.Table) -> list[str]:
    alert_ids: list[str] = alerts["alert_id"].to_pylist()
    return alert_ids


def test_a_batch_again_and_a_new_process_divide_alike(tmp_path: Path) -> None:
    first = status_of(suppress="1 s")
    batches = [table(alert(1, 5_000)), table(alert(2, 5_400), alert(3, 6_100)), table(alert(4, 6_900))]
    expected = [["0001"], ["0003"], []]
    output = RuleOutput(tmp_path, first)
    for number, batch in enumerate(batches):
        for _ in range(2):
            assert ids(output.take(batch, None, number)[0]) == expected[number]
        output = RuleOutput(tmp_path, first)
        again, held_counts = output.take(batch, None, number)
        assert ids(again) == expected[number]
        assert held_counts == ({} if number == 0 else {"held[suppressed@a]": 1, "alerts[a@1]": -1})
    lines = [orjson.loads(line) for f in sorted((tmp_path / "held").iterdir()) for line in f.read_bytes().splitlines()]
    assert [(line["held"], line["alert"]["alert_id"]) for line in lines] == [
        ("suppressed", "0002"), ("suppressed", "0004"),
    ]  # fmt: skip


def test_a_new_status_holds_for_its_own_batch_and_is_published_after_it(tmp_path: Path) -> None:
    statuses: list[dict[str, Any]] = []
    output = RuleOutput(tmp_path, status_of(), lambda data: statuses.append(orjson.loads(data)))
    output.announce()
    status = orjson.dumps(status_of(suppress="1 s"))
    alerts, _ = output.take(table(alert(1, 5_000), alert(2, 5_001)), status, 7)
    assert ids(alerts) == ["0001"]
    assert [status.get("batch_id") for status in statuses] == [None, 7]
    assert RuleOutput(tmp_path, status_of()).status == statuses[1]


def test_a_status_tells_versions_hashes_and_refusals() -> None:
    book = new_book()
    book.apply(upsert(3, "a", status="shadow"), None)
    book.apply(upsert(4, "a", params={"nothing": 1}), None)
    status = orjson.loads(orjson.dumps(rule_status(book)))
    assert (status["epoch"], status["last_versions"]) == (1, {"a": 3})
    (rule,) = status["rules"]
    assert (rule["rule_id"], rule["version"], rule["status"], rule["epoch"]) == ("a", 3, "shadow", 1)
    assert len(rule["content_hash"]) == 64
    (refused,) = status["refused"]
    assert (refused["rule_id"], refused["version"]) == ("a", 4)
    assert "nothing" in refused["reason"]
