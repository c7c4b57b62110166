"""One process of several has the lease. Another one gets it if the owner gives it back or falls silent."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest

from cep.base.errors import SinkError
from cep.base.limits import LEASE_MS
from cep.runners.embedded.kafka import Lease
from cep.sources.kafka import KafkaSettings
from tests.real_kafka import KafkaCluster, NoBrokerError, RealKafka

WAIT_S = 60


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_one_has_it_and_a_newcomer_does_not_take_it(kafka_broker: KafkaCluster) -> None:
    if not kafka_broker.is_real:
        return
    topic, is_lost = f"lease-{uuid.uuid4().hex[:8]}", threading.Event()
    kafka_broker.create(topic, 1, cleanup_policy="compact")
    settings = KafkaSettings(kafka_broker.address)
    first = Lease(settings, topic, is_lost.set)
    wait_for(first.is_here)
    with Lease(settings, topic) as second:
        threads = [thread for thread in threading.enumerate() if thread.name == "cep-lease"]
        assert len(threads) == 2
        time.sleep(2)  # the group admits the newcomer in this time
        assert first.is_here()
        assert not second.is_here()
        first.close()
        wait_for(second.is_here)
        assert not first.is_here()
        assert not is_lost.is_set()
        # As after a silence: by its own clock it is not sure, and the number shows that another process took the lease.
        second._sure_until_s = 0.0
        assert second._number is not None
        second._number -= 1
        wait_for(lambda: second._is_taken)
        with pytest.raises(SinkError, match="another process has taken over this job"):
            second.is_here()


@pytest.mark.slow
def test_an_outage_longer_than_the_lease_takes_it_from_nobody() -> None:
    """No process is sure of the lease during the outage. Afterwards the owner continues."""
    try:
        kafka = RealKafka()
    except NoBrokerError as error:
        raise pytest.skip.Exception(str(error)) from error
    with kafka:
        kafka.create("lease", 1, cleanup_policy="compact")
        is_lost = threading.Event()
        with Lease(KafkaSettings(kafka.address), "lease", is_lost.set) as lease:
            wait_for(lease.is_here)
            for end in (kafka.kill, kafka.stop):
                end()
                wait_for(lambda: not lease.is_here())
                time.sleep(LEASE_MS / 1_000 + 3)
                assert not lease.is_here()
                kafka.start()
                wait_for(lease.is_here)
            assert not is_lost.is_set()
