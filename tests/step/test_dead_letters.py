"""The counters of the matching stage without Spark, and the limit on equal letters."""

from __future__ import annotations

from collections import Counter

from cep.base.limits import EQUAL_LETTERS_MAX
from cep.columnar.route import route
from cep.step.dead_letters import bounded_equals, count_once
from cep.step.job import Job
from cep.step.validate import validate_events
from tests.columnar.common import ONE, TWO, decode, record


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


def test_equal_letters_are_written_up_to_a_limit_and_counted_beyond_it() -> None:
    """Packed, a million empty records take a kilobyte. Letters that differ are all written."""
    decoded = decode([b"{}"] * 1_000 + [b'{"n": %d}' % n for n in range(1_000)])
    valid = validate_events(Job(ONE, (("card_id",),)), decoded)
    letters = Counter(valid.dead_letters)
    assert max(letters.values()) == EQUAL_LETTERS_MAX
    assert len(letters) == 1 + 1_000
    left_out = valid.counters["letters_left_out"]
    assert len(valid.dead_letters) + left_out == valid.counters["poison[missing_field]"] == 2_000


def test_letters_stay_in_their_order() -> None:
    counters: Counter[str] = Counter()
    letters = [b"%d" % (n % 3) for n in range(3 * EQUAL_LETTERS_MAX + 3)]
    assert list(bounded_equals(letters, counters)) == letters[:-3]
    assert bounded_equals(letters[:-3], counters) == letters[:-3]
    assert counters == {"letters_left_out": 3}
