"""The input of a soak: rules that need every feature, payments at a rate, some with faults, and changes of rules.

Tested by: tests/faults/test_soak.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson

from cep.base.text import utc_text
from cep.model.rule import Changes, HeartbeatRecord, PauseRecord, RetireRecord, UpsertRecord
from cep.rulebook.ledger import hash_of

CARDS, DEVICES = 300, 40
HUGE = 4_000_000_000_000_000_000
CROWD = 1_100  # more runs of a rule than one key may have
DAY_MS = 86_400_000
PATTERNS = """event payment {
  tx_id       id
  event_time  time
  card_id     string?
  amount      decimal(2)
  status      enum(approved, declined)
  country     string
  device_id   string
  whole       int
}

event burst {
  burst_id    id
  event_time  time
  card_id     string?
  total       decimal(2)
}

pattern testing by card_id {
  seq    probe{2,} greedy -> hit  within 60 s
  where  probe: payment  status == declined
         hit:   payment  status == approved and amount > 50.00
  skip   past last
  emit   probes = count(probe), probed = sum(probe.amount)
}

pattern silence by card_id {
  seq    large -> !other within 20 s
  where  large: payment  amount > 95.00
         other: payment  status == approved
  emit   amount = large.amount
}

pattern alone by card_id {
  seq    large -> larger within 20 s
  where  large:  payment  amount > 98.00
         larger: payment  amount > 99.00
  skip   past last
  emit   whole = large.whole
  on timeout
  emit   whole = large.whole
}

pattern spree by card_id {
  seq    now
  where  now: payment  amount > 1.2 * avg(payment.amount over previous 60 s)
                       and count(payment over 30 s) >= 3
                       and amount >= approx_percentile(payment.amount over 2 min, 60)
  emit   amount = now.amount
}

pattern elsewhere by card_id {
  seq    now
  where  now: payment  last(payment over previous 60 s by device_id).country != country and amount > 90.00
  emit   country = now.country
}

pattern bursts by card_id {
  seq      one -> two  within 20 s
  where    one: payment  amount > 60.00
           two: payment  amount > 60.00
  emit     card_id = two.card_id, total = one.amount + two.amount
  produce  burst
}

pattern twice by card_id {
  seq    first -> second  within 30 s
  where  first: burst
         second: burst  total > first.total
  skip   past last
  emit   total = second.total
}

pattern crowd by card_id {
  seq    one -> two  within 30 s
  where  one: payment  whole == 7
         two: payment  whole == 8
  skip   none
  emit   amount = two.amount
}

pattern vast by card_id {
  seq    x{3}  within 30 s
  where  x: payment  whole > 1000000000000
  skip   past last
  emit   total = sum(x.whole)
}
"""
_RULES = {"testing": {}, "silence": {}, "alone": {}, "spree": {"suppress": "20 s"}, "elsewhere": {}, "bursts": {},
          "twice": {}, "crowd": {}, "vast": {}}  # fmt: skip


def write_rules(folder: Path) -> None:
    """Write the first files of the job."""
    folder.mkdir()
    (folder / "all.cep").write_text(PATTERNS)
    for name, more in _RULES.items():
        fields = {"id": name, "pattern": name, "version": 1, "status": "live", "severity": "low", "owner": "o",
                  "message": "{key}", "file": "all.cep", **more}  # fmt: skip
        (folder / f"{name}.toml").write_text(
            "".join(f"{key} = {orjson.dumps(value).decode()}\n" for key, value in fields.items())
        )


@dataclass
class Payments:
    """Payments, each with a number; `history` has the ones that must count."""

    chance: Random
    history: Path
    number: int = 0
    lines: list[bytes] = field(default_factory=list)

    def payment(self, now_ms: int, **more: Any) -> bytes:
        """Return one more payment, in the form in which it is sent."""
        self.number += 1
        chance = self.chance
        event = {
            "tx_id": f"t{self.number}", "event_time": utc_text(now_ms), "card_id": f"c{chance.randrange(CARDS)}",
            "amount": round(chance.uniform(1, 100), 2), "status": chance.choice(("approved", "approved", "declined")),
            "country": chance.choice(("PT", "FR", "DE")), "device_id": f"d{chance.randrange(DEVICES)}", "whole": 0,
            **more,
        }  # fmt: skip
        line = orjson.dumps(event)
        self.lines.append(line)
        return line

    def odd(self, now_ms: int) -> list[bytes]:
        """Return faulty or rare payments: late, ahead, twice, unreadable, without a key, beyond a limit."""
        crowd = [self.payment(now_ms, card_id="crowd", whole=7) for _ in range(CROWD)]
        vast = [self.payment(now_ms, card_id="vast", whole=HUGE) for _ in range(3)]
        rare = [self.payment(now_ms, card_id=None), *crowd, self.payment(now_ms + 1, card_id="crowd", whole=8), *vast]
        twice = [self.payment(now_ms)] * 2
        wrong = [self.payment(now_ms - DAY_MS), self.payment(now_ms + DAY_MS)]
        return [*rare, *twice, *wrong, b"{", b"{}"]

    def write(self) -> None:
        """Append the payments so far to the file."""
        with self.history.open("ab") as file:
            file.writelines(line + b"\n" for line in self.lines)
        self.lines.clear()


@dataclass
class Publisher:
    """A publisher who changes rules, and makes every possible mistake. `records` are all records of the hour."""

    base: UpsertRecord
    version: int = 0
    records: list[bytes] = field(default_factory=list)
    _last: RetireRecord | None = None

    def changes(self, now_ms: int) -> list[bytes]:
        """Return control records: one that counts, and others that are refused, ignored, waiting or unreadable."""
        self.version += 2
        before = self._last
        changes = Changes() if before is None else Changes(version=before.version, hash=hash_of(before))
        fields = {"id": "temporary", "status": "shadow", "version": self.version - 1, "changes": changes}
        first = self.base.model_copy(update={**fields, "effective_at": utc_text(now_ms - 20_000)})
        other = first.model_copy(update={"severity": "high", "version": self.version})
        retired = RetireRecord(
            id="temporary", version=self.version, changes=Changes(version=first.version, hash=hash_of(first))
        )
        self._last = retired
        sent = [
            first.to_json(), first.to_json(), other.to_json(), b"{",
            PauseRecord(id="nobody", version=1).to_json(),
            HeartbeatRecord(event_time=utc_text(now_ms - 5_000)).to_json(),
            HeartbeatRecord(event_time=utc_text(now_ms + DAY_MS)).to_json(),
        ]  # fmt: skip
        self.records += sent
        return sent

    def end(self) -> list[bytes]:
        """Return the retirement of the rule that the last call has published, whose runs are open."""
        assert self._last is not None, "a change comes first"
        later = self._last.to_json()
        self.records.append(later)
        return [later]
