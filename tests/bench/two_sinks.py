"""`python -m tests.bench.two_sinks`: a webhook hangs; how late are the alerts of a topic, compared with a well webhook?

    payments ─▶ Kafka ─▶ `cep run` or `cep live` ─┬─▶ a topic, whose latency is measured
                                                  └─▶ a webhook, which answers in one phase and hangs in the next

Each payment gives an alert. Phases of a well and of a hanging webhook take turns in one job, so that the load of the
machine is the same for both. Latency is the time from the send of a payment until a reader of committed records has
its alert.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import orjson
from confluent_kafka import Consumer, Producer

from cep.base.kafka import WRITER_FIXED
from cep.base.text import utc_text
from tests.bench.peer_data import show
from tests.faults.real_cells import SECRET, Receiver
from tests.faults.soak import ROOT
from tests.real_kafka import RealKafka
from tests.rule_files import rule_text
from tests.webhook import url_of

PATTERN = """event payment {
  tx_id       id
  event_time  time
  card_id     string
  number      int
}

pattern each by card_id {
  seq    one
  where  one: payment  number >= 0
  emit   number = one.number
}
"""
STATES = ("", "hangs")
CARDS = 100
SETTLE_S = 7.0  # after a change of the webhook: a hanging request ends after a while
FLUSH_S = 60.0


def collect(address: str, arrivals: dict[int, float], ended: threading.Event) -> None:
    """Note the arrival of each alert, until `ended`."""
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": "reader", "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "fetch.wait.max.ms": "5",
    })  # fmt: skip
    consumer.subscribe(["alerts"])
    while not ended.is_set():
        for message in consumer.consume(1_000, 0.05):
            if message.error() is None:
                number = int(orjson.loads(message.value() or b"{}")["measures"]["number"])
                arrivals.setdefault(number, time.monotonic())
    consumer.close()


def start(runner: str, folder: Path, address: str, webhook: str) -> subprocess.Popen[bytes]:
    (folder / "rules").mkdir()
    (folder / "rules" / "each.cep").write_text(PATTERN)
    (folder / "rules" / "each.toml").write_text(rule_text("each", "each.cep", message="{key}"))
    (folder / "cep.toml").write_text(f'[output.webhook]\nsecret = "env:{SECRET}"\n')
    words = [
        runner, "--rules", str(folder / "rules"), "--bootstrap-servers", address, "--topic", "payments",
        "--checkpoint", str(folder / "job"), "--lateness", "0 s", "--conf", str(folder / "cep.toml"),
        "--alerts", "kafka:alerts", "--alerts", webhook, "--log", "json",
    ]  # fmt: skip
    command = [sys.executable, "-c", "from cep.cli.main import entry; entry()", *words]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)


def send_phases(
    producer: Producer, receiver: Receiver, arrivals: dict[int, float], options: argparse.Namespace
) -> list[tuple[str, float]]:
    """Send payments in phases; return the phase of each payment, and the time at which it was sent."""
    sent: list[tuple[str, float]] = []

    def send(state: str, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            number = len(sent)
            sent.append((state, time.monotonic()))
            payment = {
                "tx_id": f"t{number}", "event_time": utc_text(int(time.time() * 1_000)),
                "card_id": f"c{number % CARDS}", "number": number,
            }  # fmt: skip
            producer.produce("payments", orjson.dumps(payment))
            producer.poll(0)
            time.sleep(1 / options.rate)

    while not arrivals:
        send("start", 1.0)
    for _ in range(options.rounds):
        for state in STATES:
            receiver.state = state
            send("start", SETTLE_S)
            send(state, options.seconds)
    receiver.state = ""
    producer.flush(FLUSH_S)
    until_s = time.monotonic() + FLUSH_S
    while len(arrivals) < len(sent) and time.monotonic() < until_s:
        time.sleep(0.1)
    return sent


def print_figures(sent: list[tuple[str, float]], arrivals: dict[int, float], title: str) -> None:
    """Print the latencies of both kinds of phases, and their ratio."""
    figures = {}
    for state in STATES:
        numbers = [number for number, (name, _) in enumerate(sent) if name == state]
        latencies_ms = [(arrivals.get(number, np.inf) - sent[number][1]) * 1_000 for number in numbers]
        figures[state] = np.percentile(latencies_ms, [50, 90, 99])
    names = (("the webhook answers", ""), ("the webhook hangs", "hangs"))
    rows = [(name, *(f"{value:.1f}" for value in figures[state])) for name, state in names]
    rows.append(("ratio", *(f"{b / a:.2f}" for a, b in zip(figures[""], figures["hangs"], strict=True))))
    show(title, ("phase", "p50 ms", "p90 ms", "p99 ms"), rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", choices=("run", "live"), default="run")
    parser.add_argument("--rate", type=int, default=100, help="payments a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=3, help="phases of each kind")
    options = parser.parse_args()
    os.environ.setdefault(SECRET, "secret")
    receiver, arrivals, ended = Receiver(), dict[int, float](), threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cep-two-sinks-")))
        kafka = stack.enter_context(RealKafka())
        server = receiver.serve()
        stack.callback(server.shutdown)
        for topic in ("payments", "alerts"):
            kafka.create(topic, 1)
        process = start(options.runner, folder, kafka.address, url_of(server))
        stack.callback(process.wait)
        stack.callback(process.terminate)
        reader = threading.Thread(target=collect, args=(kafka.address, arrivals, ended))
        reader.start()
        stack.callback(reader.join)
        stack.callback(ended.set)
        producer = Producer({**WRITER_FIXED, "bootstrap.servers": kafka.address, "linger.ms": 0, "log_level": 2})
        sent = send_phases(producer, receiver, arrivals, options)
    print_figures(sent, arrivals, f"cep {options.runner}, {options.rate} alerts/s")
    missing = len(sent) - len(arrivals)
    print(f"{len(sent)} alerts, {missing} missing in the topic")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
