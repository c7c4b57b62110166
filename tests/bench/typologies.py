"""Laundering over several accounts, detected by patterns that feed patterns: precision and recall by typology.

    python -m tests.bench.typologies

It runs on transfers of a public generator with labelled instances. An alert is right if the transfer that completed it
belongs to an instance of its typology; an instance is detected if a right alert is about it.

Instances of fan-in and fan-out are spread over up to 638 days among a hundred thousand ordinary transfers, so that only
the newness of the accounts distinguishes them. When the data begins every account is new: the two patterns that look
for new ones are in force from its second month, with the first one as their past.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.runners.output import Replayed
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.bench.peer_data import SHARED, show, stop, upsert

DATA = SHARED / "data" / "amlsim_typologies_12k_accounts.parquet"
LINKS_MAX = 9  # transfers in the longest cycle to detect
WINDOW = "20 d"
KNOWN_FROM = {"new_payer": "2017-01-31T00:00:00Z"}
TYPOLOGIES = (
    ("fan_in", "fan_in"),
    ("fan_out", "fan_out"),
    ("scatter_gather", "scatter_gather"),
    ("gather_scatter", "gather_scatter"),
    ("cycle", "circle"),
)

_EVENTS = """
event transfer {
  tx_id            id
  event_time       time
  orig_account_id  int
  dest_account_id  int
  amount           decimal(2)
}
event credit { credit_id id  event_time time  account int  other int  amount decimal(2) }
event debit { debit_id id  event_time time  account int  other int  amount decimal(2) }
event hop { hop_id id  event_time time  origin int  via int  target int }
event first_debit { first_debit_id id  event_time time  payee int }
event first_credit { first_credit_id id  event_time time  payer int }

pattern incoming by dest_account_id {
  seq      t
  where    t: transfer
  skip     none
  emit     account = t.dest_account_id, other = t.orig_account_id, amount = t.amount
  produce  credit
}
pattern outgoing by orig_account_id {
  seq      t
  where    t: transfer
  skip     none
  emit     account = t.orig_account_id, other = t.dest_account_id, amount = t.amount
  produce  debit
}

## The same amount goes in and out again.
pattern passed_on by account {
  seq      c -> d  within WINDOW
  where    c: credit
           d: debit  amount == c.amount and other != c.other
  skip     none
  emit     origin = c.other, via = d.account, target = d.other
  produce  hop
}
## One account reaches another one over several that only pass on.
pattern scatter_gather by (origin, target) {
  seq      h{3}  within WINDOW
  where    h: hop
}
## Several pay into an account that had no business before, and it pays out to several.
pattern gather_scatter by account {
  seq      c{3,} -> d{3}  within WINDOW
  where    c: credit  count(credit over previous 60 d) < 8 and count(debit over previous 60 d) == 0
           d: debit  count(debit over 60 d) < 8
}
## An account of which nothing was known pays for the first time, or is paid for the first time.
pattern new_payer by account {
  seq      d
  where    d: debit  count(debit over 400 d) == 1 and not exists(credit over 400 d)
  skip     none
  emit     payee = d.other
  produce  first_debit
}
pattern new_payee by account {
  seq      c
  where    c: credit  count(credit over 400 d) == 1 and not exists(debit over 400 d)
  skip     none
  emit     payer = c.other
  produce  first_credit
}
## Accounts that were opened for it pay into one.
pattern fan_in by payee {
  seq      d
  where    d: first_debit  count(first_debit over 200 d) >= 2
  skip     none
}
## One account pays out to several that were opened for it.
pattern fan_out by payer {
  seq      c
  where    c: first_credit  count(first_credit over 100 d) >= 5 and count(first_credit over 400 d) <= 12
  skip     none
}
"""
_LINK = """
event linkN { linkN_id id  event_time time  account int  origin int }
pattern chainN by account {
  seq      before -> d  within 12 d
  where    before: BEFORE
           d: debit  other != before.ORIGIN and count(debit over 20 d) == 1
  skip     none
  emit     account = d.other, origin = before.ORIGIN
  produce  linkN
}
## Money comes back to where it started, over N accounts.
pattern circleN by account {
  seq      before -> d  within 12 d
  where    before: linkN
           d: debit  other == before.origin and count(debit over 20 d) == 1
  skip     none
}
"""


def source() -> str:
    """Return the patterns: a chain grows by one transfer at each level, as long as the next payment comes soon."""
    text = _EVENTS.replace("WINDOW", WINDOW)
    for number in range(2, LINKS_MAX):
        before, origin = ("credit", "other") if number == 2 else (f"link{number - 1}", "origin")
        text += _LINK.replace("BEFORE", before).replace("ORIGIN", origin).replace("N", str(number))
    return text


def run(table: pa.Table, text: str, names: list[str]) -> Replayed:
    """Replay the transfers with these patterns."""
    rules = [upsert(text, name).model_copy(update={"effective_at": KNOWN_FROM.get(name)}) for name in names]
    deployment = deploy(rules)
    if deployment.set_aside:
        stop(f"a pattern is refused: {deployment.set_aside[0].reason} {deployment.set_aside[0].diagnostics}")
    job = Job(deployment.schema, deployment.key_domains)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "transfers.parquet")
        return replay(job, deployment.rulebook, read_pieces(Path(folder) / "transfers.parquet", job.schema), 2)


def main() -> None:
    """Replay and print."""
    if not DATA.exists():
        stop(f"the labelled transfers are not at {DATA}; nothing to find")
    table, text = pq.read_table(DATA), source()
    names = [line.split()[1] for line in text.splitlines() if line.startswith("pattern ")]
    replayed = run(table.select(["tx_id", "event_time", "orig_account_id", "dest_account_id", "amount"]), text, names)
    label = {
        str(tx): (typology, alert)
        for tx, typology, alert in zip(*(table[c].to_pylist() for c in ("tx_id", "typology", "alert_id")), strict=True)
    }
    rows = []
    for typology, rules in TYPOLOGIES:
        total = len({alert for kind, alert in label.values() if kind == typology})
        ours = [a for a in replayed.alerts.to_pylist() if a["rule_id"].startswith(rules)]
        ended = [label[a["events"][-1]["event_id"].split("~")[0]] for a in ours]
        right = [alert for kind, alert in ended if kind == typology]
        precision = f"{len(right) / len(ours):.2f}" if ours else "-"
        rows.append((typology, str(total), str(len(ours)), precision, f"{len(set(right)) / total:.2f}"))
    head = ("typology", "instances", "alerts", "precision", "recall")
    show(f"{len(table):,} transfers, {len(names)} patterns in {replayed.seconds:.1f} s", head, rows)


if __name__ == "__main__":
    main()
