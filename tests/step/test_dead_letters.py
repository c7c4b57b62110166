"""The counters of the matching stage, without Spark."""

from __future__ import annotations

from cep.columnar.route import route
from cep.step.dead_letters import count_once
from cep.step.job import Job
from tests.columnar.common import TWO, decode, record


def test_a_late_event_is_counted_once_however_many_keys_it_has() -> None:
    job = Job(TWO, (("card_id",), ("device",)))
    decoded = decode(
        [
            record(event_type="payment"),
            record(event_type="login", login_id="l1", card_id="c1", device="d1"),
            record(event_type="login", login_id="l2", card_id=None, device="d2"),
        ],
        TWO,
    )
    counted = [
        count_once(job, number, route(decoded, domain, TWO.columns())[0]) for number, domain in enumerate(job.domains)
    ]
    assert counted == [2, 1], "the payment and a login by card, the login without a card by device"
