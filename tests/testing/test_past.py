"""A test of a pattern that reads past events: the events that fire, and a report about one that does not."""

from __future__ import annotations

from cep.lang.load import load_text
from cep.testing.explain import Explainer
from cep.testing.harness import Outcome, run_test

TEXT = """
event pay { id id  event_time time  card string  amount decimal(2)  shop string }
pattern unusual by card {
  seq    a
  where  a: pay  amount > 3 * avg(pay.amount over previous 30 d) and first_seen(shop) < 1 min
                 and count(pay over 1 h) < 5
  emit   amount = a.amount
}
test "far above what is usual, in a new shop" of unusual {
  c1:  0s  pay amount=10 shop="a"
       1d  pay amount=20 shop="a"
       2d  pay amount=46 shop="b"
  c2:  2d  pay amount=46 shop="a"
  expect match on c1 at 2d { amount: 46.00 }
}
test "the shop is known" of unusual {
  c1:  0s  pay amount=10 shop="a"
       2d  pay amount=90 shop="a"
  expect match on c1 at 2d
}
"""


def test_past_events_in_a_test_of_a_pattern() -> None:
    checked = load_text(TEXT)
    assert checked.ok, [d.message for d in checked.diagnostics]
    first, second = (run_test(checked.schema, test) for test in checked.tests)
    assert first.outcome is Outcome.PASSED, first.error
    assert first.error == ""
    assert second.outcome is Outcome.FAILED
    assert second.error == ""
    lines = "\n".join(Explainer(second.traces["c1"], str).not_started())
    assert "first_seen(shop) = 2 d" in lines
