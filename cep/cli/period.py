"""`--since`, `--until` and `--dedup` of a verb that reads a finite history → the period whose events count.

Tested by: tests/api/test_period.py
"""

from __future__ import annotations

import argparse

from cep.model.setting_types import length_ms
from cep.sources.period import Period, period_of


def add_period_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare from when to when events count."""
    parser.add_argument(
        "--since", metavar="TIME", help="events before this event time are left out, like 2026-03-01T00:00:00Z"
    )
    parser.add_argument("--until", metavar="TIME", help="events from this event time on are left out")
    add_dedup_argument(parser)


def add_dedup_argument(parser: argparse.ArgumentParser) -> None:
    """Declare for how long event ids are remembered, which all verbs that read a history do alike."""
    parser.add_argument(
        "--dedup",
        default="10 min",
        metavar="TIME",
        help="event time for which event ids are remembered, as in the live job that had these events: an event that "
        "comes again is ignored and counted as a duplicate, another event of its type and keys with its id is set "
        "aside (default 10 min; 0 s: never)",
    )


def add_to_the_end_argument(parser: argparse.ArgumentParser) -> None:
    """Declare that all windows close at the end of the history."""
    parser.add_argument(
        "--to-the-end",
        action="store_true",
        help="close all windows that are open at the last event, or at --until; a later event could still refute an "
        "alert that only this gives, and `cep replay` marks it as `unconfirmed`",
    )


def given_period(options: argparse.Namespace) -> Period:
    """Return the period. Raises: UsageError for an invalid time."""
    to_the_end = getattr(options, "to_the_end", False)
    dedup_ms = length_ms("--dedup", options.dedup)
    return period_of(options.since, options.until, "--", to_the_end=to_the_end, dedup_ms=dedup_ms)
