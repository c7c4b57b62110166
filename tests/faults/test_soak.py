"""The soak's rules are sound, its judges detect faults, and a short one ends well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import orjson
import pytest

from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from tests.bench.metrics import Samples
from tests.faults.soak import ELSEWHERE, FLAT, ROOT, judge_flat, judge_moved, judge_sinks, page
from tests.faults.soak_stream import Payments, Publisher, write_rules
from tests.webhook import Webhook

NOW_MS = 1_767_225_600_000


def test_its_rules_are_taken_and_its_publisher_changes_them(tmp_path: Path) -> None:
    write_rules(tmp_path / "rules")
    records, problems = read_rules(tmp_path / "rules")
    assert problems == []
    assert not deploy(records).set_aside
    publisher = Publisher(records[0])
    for minute in range(4):
        assert publisher.changes(NOW_MS + minute) if minute % 2 == 0 else publisher.end()
    versions = [orjson.loads(line)["version"] for line in publisher.records if b'"temporary"' in line]
    assert versions == [1, 1, 2, 2, 3, 3, 4, 4]


def test_its_payments_have_numbers_of_their_own(tmp_path: Path) -> None:
    payments = Payments(Random(1), tmp_path / "history")
    sent = [payments.payment(NOW_MS), *payments.odd(NOW_MS)]
    payments.write()
    written = (tmp_path / "history").read_bytes().splitlines()
    assert len(set(written)) == len(written)
    assert set(sent) - set(written) == {b"{", b"{}"}


def test_what_grows_is_seen() -> None:
    samples = Samples()
    for value in range(100):
        samples.add({FLAT[0]: 1_000.0 + value, FLAT[1]: 1_000.0 + 10 * value, "other": value})
    rows, is_flat = judge_flat(samples)
    assert not is_flat
    assert [row[0] for row in rows] == [FLAT[0], FLAT[1], "other"]
    samples.found.pop(FLAT[1])
    assert judge_flat(samples)[1]


def test_what_is_missing_or_comes_twice_is_seen() -> None:
    assert judge_sinks(["a", "b"], {"x": ["b", "a"]}) == ([("x", "2", "0", "0")], True)
    assert judge_sinks(["a", "b"], {"x": ["b", "b"]}) == ([("x", "2", "1", "1")], False)


def test_each_metric_that_is_expected_elsewhere_is_named_by_its_test() -> None:
    assert set(page()) > ELSEWHERE.keys()
    for name, path in ELSEWHERE.items():
        label = name if name == "cep_live" else name.removeprefix("cep_").removesuffix("_total")
        assert f'"{label}"' in (ROOT / path).read_text(encoding="utf-8"), f"{path} does not name {name}"


def test_a_metric_that_stood_still_is_a_fault() -> None:
    moved = set(page()) - ELSEWHERE.keys()
    assert judge_moved(moved)[1]
    lines, have_moved = judge_moved(moved - {"cep_runs"})
    assert not have_moved
    assert lines[-1] == "of these expected here: cep_runs"


def test_a_webhook_notes_what_comes_again() -> None:
    webhook = Webhook()
    line = b'{"alert_id": "a", "detected_at": "2026-01-01T00:00:00Z", "n": 1}'
    for body, batch_id in ((line, 3), (line, 3), (line.replace(b"1}", b"2}"), 4)):
        webhook.take(body + b"\n", batch_id)
    assert (webhook.repeats, dict(webhook.again)) == (2, {3: 1, 4: 1})
    assert (webhook.lines, webhook.changed, webhook.wrong_batches) == ({"a": line}, ["a"], ["a"])


@pytest.mark.slow
def test_two_minutes() -> None:
    words = [sys.executable, "-m", "tests.faults.soak", "--minutes", "2", "--rate", "30"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    lines = [line.split() for line in result.stdout.splitlines()]
    sinks = {line[0]: line[-2:] for line in lines if line and line[0] in ("folder", "Parquet", "webhook", "topic")}
    assert sinks == {name: ["0", "0"] for name in ("folder", "Parquet", "webhook", "topic")}, (
        result.stdout + result.stderr
    )
