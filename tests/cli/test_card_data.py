"""No file of a run contains a card number, for good, malformed, late, repeated and poison records.

The test also reads the state back, because its files are compressed.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cep.base.exits import Exit
from cep.cli.main import main
from cep.model.rule import SnoozeRecord
from cep.runners.embedded.opening import PART, StoreSettings, store_folder
from cep.state.entries import read_entries
from cep.state.keys import KeyRange
from tests.columnar.protected import KEYS, card_numbers
from tests.real_kafka import KafkaCluster
from tests.sinks.test_kafka import consumed

START_MS = 1_767_225_600_000
# Texts around a number, and between its digits, as people write them.
FREE_TEXTS = (
    "much {0}", "{0} 2 calls", "2 calls, {0}", "12 {0} 34", "{1}_{2}_{3}", "{1}/{2}/{3} 2026", "{1}.{2}.{3};9", "n{0}n",
    "{1}\u00a0{2}\u00a0{3}", "{1}\t{2}\t{3} 7",
)  # fmt: skip
SEPARATORS = b" -_/.;\t"
PATTERNS = """\
event payment {
  tx_id       id
  event_time  time
  card        pan
  email       string? sensitive
  amount      decimal(2)
  note        string?
}

pattern pairs by card {
  seq    a -> b within 1 h
  where  a: payment  amount > 5
         b: payment  amount > 5 and count(payment over 2 h) > 1 and distinct(payment.email over 2 h) > 0
  emit   card = b.card, email = b.email, amount = b.amount
}
"""
RULE = """\
id = "pairs"
pattern = "pairs"
file = "../patterns/pairs.cep"
version = 1
status = "live"
severity = "low"
owner = "cards"
message = "{card} paid {amount}"
suppress = "10 min"
"""


def wrong(number: str) -> str:
    """Return the number with another check digit."""
    return number[:-1] + str((int(number[-1]) + 1) % 10)


def records(seed: int, numbers: list[str]) -> list[bytes]:
    """Return a day with records of every kind; every one has a number or an address."""
    chosen = random.Random(seed)
    lines: list[bytes] = []
    for i in range(400):
        number = chosen.choice(numbers)
        ways = [number, int(number), f"{number[:4]} {number[4:8]} {number[8:]}", number, number]
        record = {
            "tx_id": f"t{i}", "event_time": START_MS + i * 20_000, "card": chosen.choice(ways), "amount": 9.5,
            "email": f"{number}@example.org",
        }  # fmt: skip
        kind = chosen.randrange(12)
        if kind == 0:
            record["event_time"] = START_MS - 3_600_000  # late
        elif kind == 1:
            record["amount"] = FREE_TEXTS[i % len(FREE_TEXTS)].format(number, number[:4], number[4:8], number[8:])
        elif kind == 2:
            record["card"] = wrong(number)
        elif kind == 3:
            record["card"], record["card_no"] = None, number
        elif kind == 4:
            record["card"], record["note"] = [number], f"card {number} refused"
        elif kind == 5:
            record["tx_id"] = f"t{max(0, i - 3)}"  # perhaps a repeat
        elif kind == 6:
            record["event_time"] = number
        line = orjson.dumps(record)
        lines.append(line[: chosen.randrange(40, len(line))] if kind == 7 else line)
    return lines


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CEP_SECRETS_FILE", raising=False)
    monkeypatch.setenv("CEP_SECRETS", KEYS)
    (tmp_path / "repository" / "patterns").mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (tmp_path / "repository" / "patterns" / "pairs.cep").write_text(PATTERNS)
    (tmp_path / "repository" / "rules").mkdir()
    (tmp_path / "repository" / "rules" / "pairs.toml").write_text(RULE)
    return tmp_path / "repository" / "rules"


def stored(job: Path) -> Iterator[bytes]:
    """Yield the keys and values of a job's store, whose files have compressed blocks."""
    for path in job.rglob("*.cep"):
        for key, value in read_entries(path):
            yield key + value
    with StoreSettings(job).open(store_folder(job) / PART) as store:
        for key, value in store.scan(KeyRange(b"", b"\xff" * 8)):
            yield key + value


def assert_absent(numbers: list[str], contents: Iterator[bytes]) -> None:
    for content in contents:
        plain = content.translate(None, SEPARATORS)
        for number in numbers:
            assert number.encode() not in plain
            assert number.encode().hex().encode() not in plain


@pytest.mark.slow
@pytest.mark.always
def test_no_file_of_a_run_has_a_card_number(rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = card_numbers(11, 12)
    searched = [*numbers, *(wrong(number) for number in numbers)]
    out = tmp_path / "out"
    lines = records(1, numbers)
    (tmp_path / "events").mkdir()
    arguments = [
        "run", "--rules", str(rules), "--events", str(tmp_path / "events"), "--alerts", str(out / "alerts"),
        "--checkpoint", str(out / "job"), "--dedup", "1 d", "--available-now", "--log", "json",
        "--checkpoint-target", str(out / "target"), "--rejected-max", "1",
    ]  # fmt: skip
    for number, part in enumerate((lines[:200], lines[200:])):
        (tmp_path / "events" / f"{number}.jsonl").write_bytes(b"\n".join(part) + b"\n")
        assert main(arguments) == 0
    assert main(["job", "savepoint", "--checkpoint", str(out / "job"), "--to", str(out / "savepoint")]) == 0
    (tmp_path / "all.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    replay = ["replay", "--rules", str(rules), "--events", str(tmp_path / "all.jsonl")]
    replay += ["--rejected-max", "1", "--out"]
    assert main([*replay, str(out / "replayed.jsonl"), "--dedup", "1 d"]) == 0
    assert main([*replay, str(out / "replayed.parquet"), "--dedup", "1 d"]) == 0
    printed = capsys.readouterr()
    assert list((out / "target").iterdir())
    rows = pq.read_table(out / "replayed.parquet").to_pylist()
    assert len(rows) > 5
    assert_absent(searched, (repr(row).encode() for row in rows))  # the pages of the file are compressed
    files = [path for path in out.rglob("*") if path.is_file()]
    assert_absent(searched, (path.read_bytes() for path in files))
    assert_absent(searched, (str(path).encode() for path in files))
    assert_absent(searched, iter([printed.out.encode(), printed.err.encode()]))
    assert_absent(searched, stored(out / "job"))
    letters = b"".join(path.read_bytes() for path in (out / "job" / "dead_letters").glob("*.jsonl"))
    codes = {orjson.loads(line).get("code") for line in letters.splitlines()}
    assert codes >= {"late", "unreadable", "no_card_number"}
    written = b"".join(path.read_bytes() for path in (out / "alerts").glob("*.jsonl"))
    alerts = [orjson.loads(line) for line in written.splitlines()]
    assert len(alerts) > 5
    assert all(alert["key"].startswith("pan_k1_") and alert["key"] in alert["message"] for alert in alerts)


def test_no_topic_has_a_card_number(kafka_broker: KafkaCluster, rules: Path, tmp_path: Path) -> None:
    numbers, name = card_numbers(13, 6), f"cards-{uuid.uuid4().hex[:8]}"
    for part in ("events", "control", "alerts", "dead", "status", "changelog"):
        kafka_broker.create(f"{name}-{part}", 1)
    until = "2030-01-01T00:00:00Z"
    snoozes = [
        SnoozeRecord(id="pairs", version=1, until=until, key=numbers[0], by="Ada"),
        SnoozeRecord(id="none", version=1, until=until, key="k", by="Ada", reason=f"{numbers[1]} called"),
    ]
    snoozed = [snooze.to_json() for snooze in snoozes]
    snoozed.append(snoozed[0].replace(b'"version":1', b'"version":"1"'))
    kafka_broker.send(f"{name}-control", [{"value": value, "partition": 0} for value in snoozed])
    kafka_broker.send(f"{name}-events", [{"value": value, "partition": 0} for value in records(4, numbers)])
    assert main([
        "run", "--rules", str(rules), "--bootstrap-servers", kafka_broker.address, "--topic", f"{name}-events",
        "--control-topic", f"{name}-control", "--status-topic", f"{name}-status", "--alerts", f"kafka:{name}-alerts",
        "--dead-letter-topic", f"{name}-dead", "--checkpoint", str(tmp_path / "job"), "--available-now",
        "--changelog", f"{name}-changelog", "--rejected-max", "1",
    ]) == 0  # fmt: skip
    for part in ("alerts", "dead", "status", "changelog"):
        contents = [data for one in consumed(kafka_broker, f"{name}-{part}", 1) for data in (one.key(), one.value())]
        assert any(contents), part
        assert_absent(numbers, (data for data in contents if data))
    assert_absent(numbers, (path.read_bytes() for path in (tmp_path / "job").rglob("*") if path.is_file()))


def test_a_job_without_its_key_does_not_start(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CEP_SECRETS")
    (tmp_path / "e.jsonl").write_bytes(records(1, card_numbers(1, 2))[0])
    events = ["--rules", str(rules), "--events", str(tmp_path / "e.jsonl")]
    assert main(["run", *events, "--checkpoint", str(tmp_path / "job"), "--available-now"]) == Exit.USAGE
    assert "--secrets" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()
    assert main(["replay", *events, "--out", str(tmp_path / "a.jsonl")]) == Exit.USAGE
    assert "--secrets" in capsys.readouterr().err
