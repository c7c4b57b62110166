"""`--since` and `--until` of a verb that reads a finite history → the period whose events count.

Tested by: tests/api/test_period.py
"""

from __future__ import annotations

import argparse

from cep.sources.period import Period, period_of


def add_period_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare from when to when events count."""
    parser.add_argument(
        "--since", metavar="TIME", help="events before this event time are left out, like 2026-03-01T00:00:00Z"
    )
    parser.add_argument("--until", metavar="TIME", help="events from this event time on are left out")


def given_period(options: argparse.Namespace) -> Period:
    """Return the period. Raises: UsageError for a time that is none."""
    return period_of(options.since, options.until, "--")
