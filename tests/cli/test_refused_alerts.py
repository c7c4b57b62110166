"""A webhook judges: an answer about the receiver makes the job wait, one about an alert makes a dead letter."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest

from cep.cli.main import main
from tests.cli.test_run import RULES, free_port
from tests.runners.embedded.cases import morning
from tests.webhook import Handler, serving, url_of


def asked(port: int, path: str) -> tuple[int, str]:
    """Return the answer of a job's port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass
class Judge:
    """A receiver whose `judge` chooses the status of the answer to the alerts of a request."""

    judge: Callable[[list[str]], int] = lambda _: 204
    taken: list[str] = field(default_factory=list)
    server: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        judge = self

        class Judging(Handler):
            def status_of(self, body: bytes) -> int:
                names = [orjson.loads(line)["alert_id"] for line in body.splitlines()]
                status = judge.judge(names)
                judge.taken += names if status == 204 else []
                return status

        self.server = serving(Judging)


@pytest.fixture
def receiver() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.server.shutdown()
    judge.server.server_close()


def test_every_alert_arrives_or_is_a_letter_that_can_be_sent_again(
    receiver: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, refusals, unwanted = free_port(), dict[str, tuple[int, str]](), set[str]()

    def judge(names: list[str]) -> int:
        """Refuse access first; then, after the job has reported it, refuse one alert of the first request."""
        if not refusals:
            refusals["first"] = (0, "")
            return 401
        if len(refusals) == 1:
            refusals.update({path: asked(port, path) for path in ("/live", "/ready", "/health", "/metrics")})
            unwanted.add(names[len(names) // 2])
        return 400 if unwanted & set(names) else 204

    receiver.judge = judge
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    conf = tmp_path / "cep.toml"
    conf.write_text(
        f"""[job]
rules = {json.dumps(RULES)}
checkpoint = "{tmp_path}/job"
[events]
folder = "{tmp_path}/events.jsonl"
[output]
alerts = ["{url_of(receiver.server)}?token=hidden", "{tmp_path}/alerts"]
webhook = {{ secret = "known" }}
[observe]
listen = "{port}"
log = "json"
"""
    )
    assert main(["run", "--conf", str(conf), "--available-now"]) == 0
    log_lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    name = f"{url_of(receiver.server)}?…"
    assert (refusals["/live"][0], refusals["/ready"][0], refusals["/health"][0]) == (200, 503, 503)
    assert f"{name}: it refuses access; check" in refusals["/health"][1]
    assert f'cep_sink_up{{address="{name}",reason="access",sink="{name}"}} 0.0' in refusals["/metrics"][1]
    (refusal,) = [line for line in log_lines if line["event"] == "alerts_refused"]
    assert (refusal["sink"], refusal["count"], refusal["reason"]) == (name, 1, f"{name} answered 400")
    assert log_lines[-1][f"alerts_refused[{name}]"] == 1
    assert log_lines[-1]["deliveries_retried"] == 1
    assert "hidden" not in json.dumps(log_lines)
    written = [
        orjson.loads(line) for path in (tmp_path / "alerts").iterdir() for line in path.read_bytes().splitlines()
    ]
    alert_ids = {alert["alert_id"] for alert in written}
    assert sorted(receiver.taken) == sorted(alert_ids - unwanted)

    letters = str(tmp_path / "job" / "dead_letters")
    assert main(["job", "letters", "list", letters]) == 1
    shown = capsys.readouterr().out
    assert f"1 alerts were refused by {name}" in shown
    assert next(iter(unwanted)) in shown
    assert main(["job", "letters", "send", letters, "--conf", str(conf)]) == 1
    assert f"{name}: 0 alerts sent, 1 refused again" in capsys.readouterr().out
    unwanted_before, receiver.judge = set(unwanted), lambda _: 204
    assert main(["job", "letters", "send", letters, "--conf", str(conf)]) == 0
    assert sorted(receiver.taken) == sorted(alert_ids)
    assert receiver.taken[-1] in unwanted_before
    assert main(["job", "letters", "list", letters]) == 0
    assert "no refused alerts" in capsys.readouterr().out
