"""Rejected records of a verb → its last lines on standard error, and its exit code.

Tested by: tests/cli/test_rejected.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from rich.console import Console

from cep.base.limits import REJECTED_PERCENT_MAX
from cep.runners.output import Replayed
from cep.step.rejections import Rejections, rejections_of

REJECTED_MAX = "--rejected-max"


def add_rejected_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the share of the records that may be rejected."""
    parser.add_argument(
        REJECTED_MAX,
        type=_share,
        default=REJECTED_PERCENT_MAX / 100,
        metavar="SHARE",
        help="end with 1 if more than this share of the records, from 0 to 1, was set aside or has a value that cannot "
        f"be read (default {REJECTED_PERCENT_MAX / 100:g}); all or none end with 1 in any case",
    )


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return share


def judged(options: argparse.Namespace, errors: Console, code: int, *replays: Replayed) -> int:
    """Print which records of the replays were rejected; return the exit code, which was `code` without them."""
    for replayed in replays:
        code = max(code, report_rejected(options, errors, replayed.counters, replayed.dead_letters))
    return code


def report_rejected(
    options: argparse.Namespace, errors: Console, counters: Mapping[str, int], dead_letters: Iterable[bytes]
) -> int:
    """Print the rejected records. Return 1 if they are too many, otherwise 0."""
    return tell_rejections(rejections_of(counters, dead_letters), options.rejected_max, errors)


def tell_rejections(rejections: Rejections, share_max: float, errors: Console) -> int:
    """Print the report. Return 1 if too many records were rejected, otherwise 0."""
    for line in rejections.lines(REJECTED_MAX, share_max):
        errors.print(line, markup=False, soft_wrap=True)
    return int(rejections.is_above(share_max))
