"""Rulebooks that builds before 0.3 have saved, in two ledgers: this build judges later records as if it had been there.

The files earlier_rulebook.*.json are `rulebook_bytes` of the book of `applied`, as build 830e9635 wrote them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cep.model.rule import ListRecord, PauseRecord, ResumeRecord, RollbackRecord, SnoozeRecord
from cep.rulebook.erasure import forget_keys
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.statement import Signable, line_of
from cep.step.job import Job
from cep.step.rule_status import rule_status
from cep.step.rules import apply_records
from tests.rulebook.people import TRUST, by_two
from tests.rulebook.records import SCHEMA, new_book, retire, upsert

UNTIL = "2030-01-01T00:00:00Z"
DOMAINS = (("card_id",),)


def versions(first: int) -> list[Signable]:
    """Return one version of each kind of change, numbered from `first` on."""
    return [
        upsert(first, by="Ada", reason="why"), upsert(first + 1, params={"large": 7}),
        *(upsert(number, status="shadow") for number in range(first + 2, first + 4)),
        upsert(first, "s", params={"large": 9}), retire(first + 1, "s"),
        RollbackRecord(id="s", version=first + 2, to_version=first, rule=upsert(first, "s", params={"large": 9})),
        PauseRecord(id="r", version=first), ResumeRecord(id="r", version=first + 1),
        PauseRecord(id="not_there", version=first),
        *(SnoozeRecord(id="r", version=first, until=UNTIL, key=key, by="Bob") for key in ("card-7", "card-8", None)),
        ListRecord(id="l", of="string", version=first, change="replace", entries=["a"], parts=2, whole="1" * 64),
    ]  # fmt: skip


def data(records: list[Signable], kind: str) -> tuple[bytes, ...]:
    """Return the records as JSON, each signed as the change of the one before of its line."""
    signed: dict[tuple[str, int], Signable] = {}
    for record in records:
        line = line_of(record)
        before = signed.get((line, record.version - 1))
        signed[line, record.version] = by_two(record, before) if kind == "signed" else record
    return tuple(record.to_json() for record in signed.values())


def applied(kind: str) -> Rulebook:
    book = governed(new_book(), kind)
    refused = (upsert(9, "t", params={"no_such": 1}), by_two(upsert(1, "u", params={"no_such": 1})), upsert(8, "v"))
    apply_records(book, (*data(versions(1), kind), *(record.to_json() for record in refused)), 1_000)
    forget_keys(book, {"card-7"})
    return book


def governed(book: Rulebook, kind: str) -> Rulebook:
    Job(SCHEMA, DOMAINS, trust=TRUST if kind == "signed" else None, is_audited=True).govern(book)
    return book


@pytest.mark.parametrize("kind", ["signed", "unsigned"])
def test_an_earlier_rulebook_goes_on(kind: str) -> None:
    saved = Path(__file__).with_name(f"earlier_rulebook.{kind}.json").read_bytes()
    earlier, now = governed(rulebook_from_bytes(saved, SCHEMA, DOMAINS), kind), applied(kind)
    assert rulebook_bytes(earlier) == rulebook_bytes(now)
    assert rule_status(earlier) == rule_status(now)
    # Copies, other records of the same versions, skipped versions, and the next ones.
    later = [
        *data(versions(1), kind), *data([upsert(1, params={"large": 8}), upsert(3), upsert(4)], kind),
        *data(versions(6), kind), *data(versions(1) + versions(3), kind), *data(versions(1) + versions(5), kind),
    ]  # fmt: skip
    counters: Counter[str] = Counter()
    for record in later:
        lines, counts, _ = apply_records(earlier, (record,), 2_000)
        assert (lines, counts) == apply_records(now, (record,), 2_000)[:2]
        counters += counts
    assert rule_status(earlier) == rule_status(now)
    assert {"control_applied", "control_ignored", "control_refused"} <= counters.keys()
