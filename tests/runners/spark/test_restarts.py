"""The driver alone restarts a query whose brokers do not answer: the test needs no session of Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from cep.base.errors import CepError, SinkAwayError, SourceAwayError, SourceError, SourceGoneError
from cep.runners.observe import Observed
from cep.runners.spark import live

AWAY = SourceAwayError("no answer")


class Driver:
    """A driver whose queries end as in `ends`, one after another; None is an end without an error."""

    def __init__(self, ends: Sequence[CepError | None], *, has_begun: bool = True) -> None:
        self.ends, self.observed, self.stop = list(ends), Observed(300_000), threading.Event()
        self.output: Any = SimpleNamespace(failure=None)
        self.pauses_s: list[float] = []
        self.starts = 0
        if has_begun:
            self.observed.begin()

    def start(self) -> Any:
        self.starts += 1

    def serve(self, *_: object) -> None:
        end = self.ends.pop(0)
        if end is not None:
            raise end

    def run(self) -> None:
        """Serve as `cep live` does, without its pauses."""
        with patch.object(live, "serve", self.serve), patch.object(self.stop, "wait", lambda _: self.stop.is_set()):
            live.keep_serving(
                self.start, self.output, self.stop, self.observed, lambda _, pause_s: self.pauses_s.append(pause_s)
            )


def test_pauses_grow_to_a_bound_and_the_query_goes_on() -> None:
    driver = Driver([AWAY, SinkAwayError("the status topic is away"), *[AWAY] * 6, None])
    driver.run()
    assert driver.starts == 9
    assert driver.pauses_s == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_a_query_that_has_worked_meanwhile_begins_with_a_short_pause() -> None:
    driver = Driver([AWAY, AWAY, AWAY, None])

    def serve(*_: object) -> None:
        if len(driver.ends) == 2:
            driver.observed.finished(7, {})
        Driver.serve(driver)

    driver.serve = serve  # type: ignore[method-assign]
    driver.run()
    assert driver.pauses_s == [2.0, 4.0, 1.0]


@pytest.mark.parametrize("error", [SourceError("a topic is gone"), SourceGoneError("created again")])
def test_another_fault_ends_the_job(error: CepError) -> None:
    driver = Driver([AWAY, error])
    with pytest.raises(type(error)):
        driver.run()
    assert driver.starts == 2


def test_a_first_start_ends_with_the_reason() -> None:
    driver = Driver([AWAY], has_begun=False)
    with pytest.raises(SourceAwayError):
        driver.run()


def test_a_stop_request_ends_the_waiting() -> None:
    driver = Driver([AWAY, AWAY])
    driver.stop.set()
    driver.run()
    assert driver.starts == 1
