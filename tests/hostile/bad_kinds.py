"""Kinds whose inputs fail in every way that a campaign counts, to test the counts."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from cep.base.errors import SourceError
from tests.hostile import campaign
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, HangsError, Kind

ALARM_S = 1  # of the processor: an input that hangs here hangs for good


def _raise(_: Random) -> str:
    raise SourceError("an error of ours that no door has caught is a traceback too")


def _differ(_: Random) -> str:
    raise DiffersError("another value")


def _wait(_: Random) -> str:
    raise HangsError("no answer")


def _sleep(_: Random) -> str:
    clock = campaign.Clock()
    while not clock.is_past(ALARM_S + 1):  # on a busy machine that takes longer, as waits for a processor do not count
        time.sleep(0.1)
    return ACCEPTED


def _loop(_: Random) -> str:
    while True:
        pass


def _allocate(_: Random) -> str:
    return ACCEPTED if bytearray(1 << 40) else REFUSED


def _die(_: Random) -> str:
    os._exit(7)


def _after_the_first(feed: Feed) -> Callable[[Path], Feed]:
    """Let the first input of a process pass, which warms it up."""

    def open_(_: Path) -> Feed:
        calls = iter((lambda _: ACCEPTED,))

        def feed_next(random: Random) -> str:
            return next(calls, feed)(random)

        return feed_next

    return open_


def all_kinds() -> tuple[Kind, ...]:
    feeds = {
        "raises": _raise, "differs": _differ, "loops": _loop, "waits": _wait, "sleeps": _sleep, "allocates": _allocate,
        "dies": _die,
    }  # fmt: skip
    return tuple(Kind(name, 1, _after_the_first(feed)) for name, feed in feeds.items())
