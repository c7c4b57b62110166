"""A job that accepts only signed changes accepts only signed heartbeats, and reports all others."""

from __future__ import annotations

from dataclasses import replace

import orjson

from cep.base.limits import TIME_MS_MIN
from cep.model.rule import HeartbeatRecord
from cep.rulebook.statement import sign_heartbeat
from cep.step.rules import apply_records
from tests.rulebook.people import ADA, EVE, RULE_SET, TRUST
from tests.rulebook.records import new_book


def test_a_heartbeat_counts_if_a_person_has_signed_it() -> None:
    plain = HeartbeatRecord(event_time="2026-03-01T00:00:00Z")
    good = sign_heartbeat(plain, ADA, RULE_SET)
    later = good.model_copy(update={"event_time": "2027-03-01T00:00:00Z"})
    withdrawn = replace(TRUST, signers=(replace(TRUST.signers[0], only=()), *TRUST.signers[1:]))
    narrow = replace(TRUST, signers=(replace(TRUST.signers[0], rules=("card_*",)), *TRUST.signers[1:]))
    cases = [
        (plain, TRUST, "unsigned"), (later, TRUST, "forged"), (good, withdrawn, "not_allowed"),
        (good, narrow, "not_allowed"), (sign_heartbeat(plain, EVE, RULE_SET), TRUST, "unknown_signer"),
        (sign_heartbeat(plain, ADA, "others"), TRUST, "other_rules"),
    ]  # fmt: skip
    for record, trust, cause in cases:
        book = new_book()
        book.trust = trust
        lines, counters, heartbeat_ms = apply_records(book, (record.to_json(),), None)
        letters = [orjson.loads(line) for line in lines]
        assert [letter["cause"] for letter in letters] == [cause, cause]
        assert [letters[0]["what"], letters[1]["code"]] == ["heartbeat", "control_refused"]
        assert (counters["control_unverified"], heartbeat_ms) == (1, TIME_MS_MIN)
    for job_trust, record in ((TRUST, good), (None, plain)):
        book = new_book()
        book.trust = job_trust
        lines, counters, heartbeat_ms = apply_records(book, (record.to_json(),), None)
        assert (lines, counters["control_heartbeat"], heartbeat_ms) == ([], 1, plain.event_time_ms)
