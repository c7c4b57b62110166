"""A number → two minutes of payments, a change of a rule, heartbeats, and the alerts of the replay.

Tested by: tests/faults/test_faults.py
"""

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import orjson

from cep.base.text import utc_ms, utc_text
from cep.model.rule import Changes, HeartbeatRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.ledger import hash_of
from tests.rule_files import rule_text
from tests.rulebook.records import upsert
from tests.runners.embedded.cases import expected as sent_alerts

BEGIN_MS = utc_ms("2026-03-01T12:00:00Z")
BURST_S, BURSTS, SIZE = 4, 20, 4  # a burst of payments every few seconds
END_S = BURST_S * BURSTS
CHANGE_S, EFFECTIVE_S, HEARTBEAT_S, CLOSE_S = 26, 40, 46, 40  # after the begin; the last one: after the end
SOURCE = """
event payment {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
}
pattern probes(large: decimal = 50.00) by card_id {
  seq    small{2} -> bought  within 1 min
  where  small: payment  amount < 5.00
         bought: payment  amount > large
  emit   amount = bought.amount
}
pattern silent by card_id {
  seq    opened -> !closed within 10 s
  where  opened: payment  amount > 80.00
         closed: payment  amount < 3.00
  emit   amount = opened.amount
}
"""


@dataclass(frozen=True)
class Sending:
    """A record for a topic, and when it is sent (s after the begin)."""

    after_s: float
    topic: str
    partition: int
    value: bytes


@cache
def rules() -> tuple[UpsertRecord, ...]:
    return tuple(
        upsert(1, name, pattern=name, source=SOURCE, owner="o", message="{amount} on {key}")
        for name in ("probes", "silent")
    )


@cache
def change() -> UpsertRecord:
    """The change of a rule in the middle of the stream."""
    base = rules()[0]
    fields = {
        "version": 2, "params": {"large": "30.00"}, "effective_at": utc_text(BEGIN_MS + EFFECTIVE_S * 1_000),
        "changes": Changes(version=1, hash=hash_of(base)),
    }  # fmt: skip
    return base.model_copy(update=fields)


@cache
def sendings(number: int) -> tuple[Sending, ...]:
    chance, records = Random(number), list[Sending]()
    for burst in range(BURSTS):
        for place in range(SIZE):
            time_ms = BEGIN_MS + burst * BURST_S * 1_000 + place * 100
            event = {
                "tx_id": f"t{burst}-{place}", "event_time": utc_text(time_ms),
                "card_id": f"c{chance.randrange(3)}", "amount": f"{chance.choice((1, 2, 4, 4, 20, 40, 60, 90))}.00",
            }  # fmt: skip
            records.append(Sending(burst * BURST_S + 1.0, "payments", place % 2, orjson.dumps(event)))
    records.append(Sending(CHANGE_S, "control", 0, change().to_json()))
    beat_ms = BEGIN_MS + (HEARTBEAT_S - 10) * 1_000
    records.append(Sending(HEARTBEAT_S, "control", 0, HeartbeatRecord(event_time=utc_text(beat_ms)).to_json()))
    end_ms = BEGIN_MS + (END_S + 30) * 1_000
    records.append(Sending(END_S + CLOSE_S, "control", 0, HeartbeatRecord(event_time=utc_text(end_ms)).to_json()))
    return tuple(sorted(records, key=lambda record: record.after_s))


@cache
def expected(number: int, without: frozenset[str] = frozenset()) -> dict[str, bytes]:
    """The alerts of the replay of a stream, by id; `without` names events that the job has set aside."""
    return _replayed(number, without)


def _replayed(number: int, without: Collection[str]) -> dict[str, bytes]:
    deployment = deploy([*rules(), change()])
    assert deployment.set_aside == (), deployment.set_aside
    lines = [record.value for record in sendings(number) if record.topic == "payments"]
    lines = [line for line in lines if orjson.loads(line)["tx_id"] not in without]
    with tempfile.TemporaryDirectory() as name:
        alerts = sent_alerts(lines, deployment, Path(name))
    return {orjson.loads(line)["alert_id"]: line for line in alerts}


def write_rules(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "patterns.cep").write_text(SOURCE)
    for record in rules():
        (folder / f"{record.id}.toml").write_text(rule_text(record.id, "patterns.cep", message="{amount} on {key}"))
