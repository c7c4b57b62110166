"""How long the check, the lints and the formatter take for a file with 1 000 patterns.

`python -m tests.bench.language` prints one line a step: seconds of processor time on one core, best of three, and the
limit for the step.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

from cep.lang.format.file import format_text
from cep.lang.lint.run import lint
from cep.lang.load import Checked, load_text
from cep.nfa.diagnose import compilable

PATTERNS = 1_000
ROUNDS = 3
CHECK_SECONDS_MAX, FORMAT_SECONDS_MAX = 2.0, 1.0
EVENTS = """
event transaction {
  tx_id        id
  event_time   time
  card_id      string
  amount       decimal(2)
  status       enum(approved, declined, reversed)
  channel      enum(pos, ecom, atm, transfer)
  country      string
  lat          float?
  lon          float?
}
define is_placed = channel in [pos, atm] and lat is not null and lon is not null
"""
TEXTS = (
    """
## Several small declines, then one large approval on the same card.
pattern NAME(tries: int = 3, small: decimal = 2.00, large: decimal = 500.00, window: duration = 10 min)
  by card_id
{
  seq    probe{tries,} greedy -> hit  within window
  where  probe: transaction  status == declined and amount < small
         hit:   transaction  status == approved and amount > large
  skip   past last
  emit   probes = count(probe), probed = sum(probe.amount), amount = hit.amount, country = hit.country
}
""",
    """
## The card is present in two places that nobody can reach in the time between.
pattern NAME(far_km: float = 500.0, speed_km_h: float = 1000.0, window: duration = 12 h)
  by card_id
{
  seq    here -> !elsewhere -> there  within window
  where  here:      transaction  is_placed
         elsewhere: transaction  is_placed
         there:     transaction  is_placed
                                 and distance_km(here.lat, here.lon, lat, lon) >= far_km
                                 and distance_km(here.lat, here.lon, lat, lon)
                                     > speed_km_h * ((event_time - here.event_time) / 1 h)
  emit   km = distance_km(here.lat, here.lon, there.lat, there.lon), amount = there.amount
}
""",
)


def file_of(patterns: int) -> str:
    """Return a file with this many patterns, half of each kind."""
    return EVENTS + "".join(TEXTS[i % len(TEXTS)].replace("NAME", f"p{i}") for i in range(patterns))


def seconds(step: Callable[[], object]) -> float:
    """Return the processor time of a step, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        step()
        best = min(best, time.process_time() - start)
    return best


def main() -> int:
    """Print the figures; return 1 if the check or the formatter takes too long."""
    text = file_of(PATTERNS)
    checked: Checked = load_text(text)
    assert len(checked.patterns) == PATTERNS, checked.diagnostics[:3]
    size = len(re.findall(r"\S+", text))
    print(f"{PATTERNS} patterns, {len(text):,} characters, {size:,} words")
    steps: list[tuple[str, Callable[[], object], float]] = [
        ("check", lambda: compilable(load_text(text)), CHECK_SECONDS_MAX),
        ("format", lambda: format_text(text), FORMAT_SECONDS_MAX),
        ("lint", lambda: lint(checked), CHECK_SECONDS_MAX),
    ]
    slow = False
    for name, step, most in steps:
        took = seconds(step)
        slow = slow or took > most
        print(f"{name:<8} {took:6.3f} s  (at most {most:.1f} s)  {took / PATTERNS * 1e6:7.0f} µs a pattern")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
