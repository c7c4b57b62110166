"""One core of engine.advance on the peer's events, for each of its patterns and for many rules at once.

python -m tests.bench.kernel [EVENTS]
"""

import sys

from tests.bench.peer_data import NAMES, by_rule, median_seconds, peer_batch, peer_columns, peer_program, run_once, show

SETS = {**{name: (name,) for name in NAMES}, "all four": NAMES, "10 rules": NAMES[:2] * 5, "50 rules": NAMES[:2] * 25}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    batch = peer_batch(peer_columns(count))
    rows = []
    single = 0.0
    for title, names in SETS.items():
        program = peer_program(names)
        seconds = median_seconds(lambda p=program: run_once(p, batch))  # type: ignore[misc]
        single = single or seconds
        matches, digest = by_rule(run_once(program, batch), len(names))[0]
        rates = (f"{count / seconds:,.0f}", f"{seconds / count * 1e9:,.0f}", f"{seconds / single:.2f}")
        rows.append((title, *rates, f"{matches}", digest))
    head = ("rules", "events/s", "ns/event", "time ÷ p1", "matches of the first", "checksum")
    show(f"engine.advance, one core, {count:,} events", head, rows)


if __name__ == "__main__":
    main()
