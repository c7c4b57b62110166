"""Alerts → signed POST requests to a URL, one for each micro-batch that has any.

    POST URL
    content-type     application/x-ndjson; one alert a line (json_form.py)
    x-cep-batch      number of the micro-batch; the same alerts come under the same number again after a crash
    x-cep-timestamp  seconds since 1970, part of what is signed, so that an old request cannot be sent again later
    x-cep-signature  sha256=HEX, the HMAC of "TIMESTAMP.BODY" with the secret that both sides know

An answer from 200 to 299 is a delivery. 429, what begins with 5, and no answer at all are tried again, with pauses that
double, until `wait_ms_max` is over: then the job ends, and nothing is lost. Any other answer is a refusal that trying
again cannot mend: the alerts go to the dead letters and are counted there. Receivers tell repeats by `alert_id`.
Tested by: tests/sinks/test_webhook.py
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx2
import orjson
import pyarrow as pa

from cep.base.errors import SinkError, UsageError
from cep.base.limits import WEBHOOK_WAIT_MS_MAX
from cep.sinks.base import LetterSink
from cep.sinks.json_form import json_lines

_FIRST_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0
_ANSWER_S = 10.0
_TOO_MANY, _SERVER_ERROR = 429, 500


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where alerts are sent, and what they are signed with; the secret is never printed."""

    url: str
    secret: bytes = field(repr=False)
    wait_ms_max: int = WEBHOOK_WAIT_MS_MAX

    def __post_init__(self) -> None:
        if not self.secret:
            raise UsageError(f"alerts to {self.url} are signed; give the secret that the receiver knows")


class WebhookSink:
    """Sends alerts to a URL. `letters` takes those that the receiver refuses; `pause` waits between two tries."""

    def __init__(self, target: WebhookTarget, letters: LetterSink, pause: Callable[[float], None] = time.sleep) -> None:
        self._target = target
        self._letters = letters
        self._pause = pause
        self._client = httpx2.Client(timeout=_ANSWER_S)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Send the alerts of a micro-batch; none for no alerts. Raises: SinkError if nobody answers in time."""
        if alerts.num_rows == 0:
            return
        lines = list(json_lines(alerts))
        status = self._send(b"\n".join(lines) + b"\n", batch_id)
        if status is not None:
            reason = f"{self._target.url} answered {status}"
            letters = [
                orjson.dumps({"code": "webhook_refused", "reason": reason, "record": line.decode()}) for line in lines
            ]
            self._letters.write(letters, batch_id)

    def close(self) -> None:
        """Close the connections and the letters."""
        self._client.close()
        self._letters.close()

    def _send(self, body: bytes, batch_id: int) -> int | None:
        """Returns: None for a delivery, else the status with which the receiver refuses it."""
        deadline_s = time.monotonic() + self._target.wait_ms_max / 1_000
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer = self._client.post(self._target.url, content=body, headers=self._headers(body, batch_id))
            except httpx2.InvalidURL as error:
                raise UsageError(f"{self._target.url} is no URL: {error}") from error
            except httpx2.HTTPError as error:
                reason = str(error) or type(error).__name__
            else:
                if answer.is_success:
                    return None
                if answer.status_code != _TOO_MANY and answer.status_code < _SERVER_ERROR:
                    return answer.status_code
                reason = f"it answered {answer.status_code}"
            if time.monotonic() + pause_s > deadline_s:
                raise SinkError(
                    f"the alerts of micro-batch {batch_id} did not reach {self._target.url} in "
                    f"{self._target.wait_ms_max} ms: {reason}; check the receiver and start again: nothing is lost"
                )
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _headers(self, body: bytes, batch_id: int) -> dict[str, str]:
        stamp = str(int(time.time()))
        return {
            "content-type": "application/x-ndjson",
            "x-cep-batch": str(batch_id),
            "x-cep-timestamp": stamp,
            "x-cep-signature": signature(self._target.secret, stamp, body),
        }


def signature(secret: bytes, stamp: str, body: bytes) -> str:
    """What a receiver compares with `x-cep-signature`, by hmac.compare_digest."""
    return "sha256=" + hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
