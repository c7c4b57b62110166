"""An Apache Kafka broker for tests: one process, KRaft, plaintext on a free port of the loopback interface.

Its jars come through Maven once and stay in the user's cache folder, outside of the repository. If that fails, or Java
is missing, `open_kafka` returns librdkafka's mock cluster and prints a line; `is_real` tells them apart. The mock has
no compaction, topics of four partitions only, and transactions that others cannot see. The fixture `kafka_broker` of
tests/conftest.py is one for all tests; name topics so that tests do not share one. As a process, `python -m
tests.real_kafka` prints the bootstrap address on one line, and the broker's folder on the next one, and serves until
its input ends. Tests use that broker if CEP_TESTS_KAFKA names its folder.
Tested by: tests/test_real_kafka.py
"""

import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from cep.base.kafka import WRITER_FIXED, is_shown
from cep.base.process import Closing
from tests.mock_kafka import MockKafka, send_all

VERSION = "4.1.1"
_SHARED = "CEP_TESTS_KAFKA"
TIMEOUT_S = 30.0
_START_S = 240.0  # on a busy machine
_FETCH_S = 300.0
_POLL_S = 0.1
_STARTS_MAX = 3  # another process may take the free port before the broker does
_LISTENS = re.compile(r"^advertised\.listeners=PLAINTEXT://(\S+)$", re.MULTILINE)
_CLUSTER_ID = "Y2VwLXRlc3QtY2x1c3Rlcg"  # 16 bytes in base64, as the storage tool wants
_JAVA_OPTIONS = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cep.tests</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
# Small, quick to start, and quick to compact: a test that waits for the cleaner should not wait for its pauses. Tests
# give records times of 1970, so age alone deletes none.
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}
num.partitions=4
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.initial.task.delay.ms=500
log.retention.ms=-1
"""


class NoBrokerError(Exception):
    """A real broker is not available here; the message says why."""


class KafkaCluster(Protocol):
    """The cluster methods that tests use, of a real cluster or the mock."""

    address: str
    is_real: bool
    description: str

    def create(self, topic: str, partitions: int = 4, **settings: str) -> None: ...

    def send(self, topic: str, records: Iterable[Mapping[str, object]]) -> None: ...

    def close(self) -> None: ...


class RealKafka(Closing):
    """One broker. `address`, the bootstrap.servers of clients, and the records stay over stop and start.

    Raises: NoBrokerError if the jars are missing or the broker does not start.
    """

    is_real = True
    description = f"Apache Kafka {VERSION}"

    def __init__(self) -> None:
        self._jars = jars()
        self.directory = Path(tempfile.mkdtemp(prefix="cep-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._producer: Producer | None = None
        for number in range(1, _STARTS_MAX + 1):
            try:
                self._format()
                self.start()
            except NoBrokerError:
                self.kill()
                shutil.rmtree(self.directory / "logs", ignore_errors=True)
                if number == _STARTS_MAX:
                    shutil.rmtree(self.directory)
                    raise
            else:
                break

    def start(self) -> None:
        """Start the broker over its stored records, and wait until it answers."""
        assert self._process is None, "the broker is running"
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._properties_path)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._wait_until_it_answers(self._process)

    @property
    def is_stopped(self) -> bool:
        """Return True between an end and the next start."""
        return self._process is None

    def stop(self) -> None:
        """Stop in order; `start` continues from there."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, as a crash would."""
        self._end(signal.SIGKILL)

    def create(self, topic: str, partitions: int = 4, **settings: str) -> None:
        """Make a topic that brokers show. Settings are the broker's, with `_` for `.`: cleanup_policy="compact"."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = self._admin()  # its pending requests end with it
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(TIMEOUT_S)
        assert is_shown(admin, topic, TIMEOUT_S), f"{topic} is made, and not shown"

    def create_again(self, topic: str, partitions: int = 4) -> None:
        """Delete a topic and make another one of the same name; wait until brokers show it."""
        admin = self._admin()
        before = _topic_id(admin, topic)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        give_up_s = time.monotonic() + TIMEOUT_S
        while _topic_id(admin, topic) in (before, None):  # the name is free some moments after the answer
            assert time.monotonic() < give_up_s, f"{topic} is not made again"
            with suppress(KafkaException):
                self.create(topic, partitions)
            time.sleep(_POLL_S)

    def send(self, topic: str, records: Iterable[Mapping[str, object]]) -> None:
        """Produce records, given as keyword arguments of `Producer.produce`, and wait until all are stored.

        Errors: AssertionError if one was refused or is still unsent after half a minute.
        """
        if self._producer is None:
            self._producer = Producer(
                {
                    **WRITER_FIXED,
                    "bootstrap.servers": self.address,
                    "linger.ms": 1,
                    "message.max.bytes": 16_777_216,
                    "queue.buffering.max.messages": 1_000_000,
                    "log_level": 2,
                }
            )
        send_all(self._producer, topic, records, TIMEOUT_S)

    def damage(self, topic: str, value: bytes) -> None:
        """Change a bit of a stored value, as a disk might."""
        for path in self.directory.glob(f"logs/{topic}-*/*.log"):
            position = path.read_bytes().find(value)
            if position >= 0:
                with path.open("r+b") as file:
                    file.seek(position)
                    file.write(bytes([value[0] ^ 1]))
                return
        raise AssertionError(f"{topic} has no {value!r}")

    def close(self) -> None:
        """End the broker and drop its records."""
        self._close_producer()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()

    @property
    def _properties_path(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _log_path(self) -> Path:
        return self.directory / "broker.log"

    def _format(self) -> None:
        """Choose ports and make the broker's folder."""
        port, self.controller_port = _free_ports()
        self.address = f"127.0.0.1:{port}"
        self._properties_path.write_text(self._properties(port, self.controller_port), encoding="utf-8")
        command = self._command(
            "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties_path),
            *self._format_words(),
        )  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_S)
        if process.returncode != 0:
            raise NoBrokerError(f"the broker's folder cannot be made: {(process.stderr or process.stdout)[-500:]}")

    def _properties(self, port: int, controller_port: int) -> str:
        return _PROPERTIES.format(port=port, controller_port=controller_port, directory=self.directory / "logs")

    def _format_words(self) -> list[str]:
        return []

    def _command(self, main_class: str, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise NoBrokerError("no java on the path")
        return [java, *_JAVA_OPTIONS, "-cp", f"{self._jars}/*", main_class, *arguments]

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        give_up_s = time.monotonic() + _START_S
        host, port = self.address.split(":")
        while time.monotonic() < give_up_s:
            if process.poll() is not None:
                raise NoBrokerError(f"the broker ended with {process.returncode}: {self._log_end()}")
            try:
                # The client would log every refused connection; a bare socket does not.
                socket.create_connection((host, int(port)), _POLL_S).close()
                if self._admin().list_topics(timeout=_POLL_S * 20).brokers:
                    return
            except (OSError, KafkaException):
                pass
            time.sleep(_POLL_S)
        raise NoBrokerError(f"the broker does not answer after {_START_S:.0f} s: {self._log_end()}")

    def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(sign)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(TIMEOUT_S)

    def _log_end(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")[-1500:]


class SharedKafka(RealKafka):
    """A broker that another process has started in this folder, and will end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = _LISTENS.findall(self._properties_path.read_text(encoding="utf-8"))[0]
        self._producer = None

    def close(self) -> None:
        """Leave the broker as it is."""
        self._close_producer()


class SecondBroker(RealKafka):
    """Another broker of a cluster. A topic that needs both takes no records while this one is stopped.

    Transactions stay with the first broker, even if this one fails.
    """

    description = f"a second broker of Apache Kafka {VERSION}"

    def __init__(self, first: RealKafka) -> None:
        self._first = first
        with Producer({"bootstrap.servers": first.address, "transactional.id": "second-broker"}) as producer:
            producer.init_transactions(TIMEOUT_S)  # the topic of transactions is created now, with one broker
        super().__init__()

    def create_on_both(self, topic: str) -> None:
        """Make a topic of one partition that takes a record only when both brokers have it."""
        admin = self._admin()
        new = NewTopic(topic, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "2"})
        admin.create_topics([new])[topic].result(TIMEOUT_S)
        self.wait_for_both(topic)

    def wait_for_both(self, topic: str) -> None:
        admin, end_s = self._admin(), time.monotonic() + TIMEOUT_S
        while len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions[0].isrs) < 2:
            assert time.monotonic() < end_s, f"one broker alone has the records of {topic}"
            time.sleep(_POLL_S)

    def _properties(self, port: int, controller_port: int) -> str:
        ours = {
            "process.roles": "broker",
            "node.id": "2",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.voters": f"1@127.0.0.1:{self._first.controller_port}",
        }
        lines = super()._properties(port, controller_port).splitlines()
        return "\n".join(
            f"{name}={ours.get(name, value)}" for name, _, value in (line.partition("=") for line in lines)
        )


class MockCluster(MockKafka):
    """librdkafka's mock brokers with the same methods; they ignore settings and the number of partitions."""

    is_real = False

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.description = f"librdkafka's MOCK cluster, not Apache Kafka: {reason}"

    def create(self, topic: str, partitions: int = 4, **settings: str) -> None:
        """Create a topic with four partitions, empty."""
        super().create(topic)


def new_topic(kafka: KafkaCluster, partitions: int = 4, **settings: str) -> str:
    """Make a topic that no other test uses; return its name."""
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    kafka.create(topic, partitions, **settings)
    return topic


def add_partitions(kafka: KafkaCluster, topic: str, partitions: int) -> None:
    """Give a topic more partitions, and wait until the broker shows them: a producer drops records for others."""
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 2})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)
    end_s = time.monotonic() + TIMEOUT_S
    while len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions) < partitions:
        assert time.monotonic() < end_s, f"the broker shows fewer than {partitions} partitions of {topic}"
        time.sleep(0.02)


def _topic_id(admin: AdminClient, topic: str) -> str | None:
    """Return the id of a topic; None if it does not exist."""
    try:
        about = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    except KafkaException:
        return None
    return str(about.topic_id)


def open_kafka() -> RealKafka | MockCluster:
    """Return a real broker if possible, otherwise the mock; a line on standard error names the mock.

    The tests of one run share a broker if the run has one.
    """
    if os.environ.get(_SHARED):
        return SharedKafka(Path(os.environ[_SHARED]))
    try:
        return RealKafka()
    except NoBrokerError as error:
        cluster = MockCluster(str(error))
        print(f"tests: {cluster.description}", file=sys.stderr)
        return cluster


@functools.cache
def jars() -> Path:
    """Return the folder of the broker's jars; fetch them if they are missing. Raises: NoBrokerError."""
    return fetched(f"kafka-{VERSION}", _POM)


def fetched(name: str, pom: str, goal: Sequence[str] = ("dependency:copy-dependencies",)) -> Path:
    """Return the folder `name` in the user's cache with a project's dependencies, by Maven. Raises: NoBrokerError.

    `goal`: another one that fills a folder, with its settings.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "cep" / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise NoBrokerError(f"no mvn on the path to fetch {name} with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as work:
        (Path(work) / "pom.xml").write_text(pom, encoding="utf-8")
        command = [maven, "-B", "-q", *goal, "-DoutputDirectory=jars"]
        try:
            process = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=_FETCH_S)
        except subprocess.TimeoutExpired as error:
            raise NoBrokerError(f"Maven has not fetched {name} in {_FETCH_S:.0f} s") from error
        if process.returncode != 0:
            raise NoBrokerError(f"Maven cannot fetch {name}: {process.stdout[-500:]}")
        try:
            (Path(work) / "jars").replace(folder)
        except OSError:
            assert folder.is_dir(), "another process has put it there meanwhile"
    return folder


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def main() -> None:
    """Serve until standard input ends, or a SIGTERM, so that the broker never outlives its starter."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open_kafka() as kafka:
        print(kafka.address, kafka.directory if isinstance(kafka, RealKafka) else "", sep="\n", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
