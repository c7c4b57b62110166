"""Alerts → signed POST requests to a URL, one for each micro-batch that has any.

    POST URL
    content-type     application/x-ndjson; one alert a line (json_form.py)
    x-cep-batch      number of the micro-batch; after a crash the same alerts come again under the same number.
    x-cep-timestamp  seconds since 1970. It is signed too, so an old request cannot be sent again later.
    x-cep-signature  sha256=HEX, the HMAC of "TIMESTAMP.BODY" with the secret that both sides know

An answer from 200 to 299 is a delivery. 429, what begins with 5, and no answer at all are tried again, with pauses that
double, until `wait_ms_max` is over: then `cep live` ends and loses nothing; `cep run` waits on. Any other answer is a
refusal that trying again cannot mend: the alerts go to the dead letters and are counted there. Receivers tell repeats
by `alert_id`.

Alerts name people and cards, so another machine gets them over https:// only, unless the settings say `insecure`. A URL
with a user or a password is refused. Messages and dead letters show a URL without its query, which may hold a token.
Tested by: tests/sinks/test_webhook.py, tests/runners/spark/test_live_crash.py
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import httpx2
import orjson
import pyarrow as pa

from cep.base.errors import SinkAwayError, UsageError
from cep.base.limits import WEBHOOK_WAIT_MS_MAX
from cep.model.setting_types import is_loopback
from cep.sinks.base import DeadLetterSink
from cep.sinks.json_form import json_lines

_FIRST_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0
_ANSWER_S = 10.0
_TOO_MANY, _SERVER_ERROR = 429, 500


@dataclass(frozen=True)
class WebhookTarget:
    """The URL that gets alerts and the secret that signs them. Neither is printed; `shown` stands for the URL."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)
    wait_ms_max: int = WEBHOOK_WAIT_MS_MAX
    is_insecure: bool = False

    def __post_init__(self) -> None:
        """Check the target. Raises: UsageError for a URL that may not be used, or without a secret."""
        url = self._parsed
        if url.userinfo:
            raise UsageError(
                f"the URL of a webhook on {url.host} has a user or a password in it, which would come into logs; leave "
                "them out: alerts are signed with the secret"
            )
        if url.scheme != "https" and not self.is_insecure and not is_loopback(url.host):
            raise UsageError(
                f"alerts to {self.shown} would go unencrypted to another machine; write https://, or set "
                "`insecure = true` in `webhook` of [output]"
            )
        if not self.secret:
            raise UsageError(f"alerts to {self.shown} are signed; give the secret that the receiver knows")

    @cached_property
    def shown(self) -> str:
        """The URL as messages show it: without query and fragment."""
        hidden = "?…" if self._parsed.query else ""
        return str(self._parsed.copy_with(query=None, fragment=None)) + hidden

    @cached_property
    def _parsed(self) -> httpx2.URL:
        # Read by the client that sends, so that both see the same host.
        try:
            url = httpx2.URL(self.url)
        except httpx2.InvalidURL:
            url = httpx2.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise UsageError("the URL of a webhook cannot be read; write it as https://HOST/PATH") from None
        return url


class WebhookSink:
    """Requests to a URL. `dead_letters` takes refused alerts; `pause` waits between two tries."""

    def __init__(
        self, target: WebhookTarget, dead_letters: DeadLetterSink, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._target = target
        self._dead_letters = dead_letters
        self._pause = pause
        self._client = httpx2.Client(timeout=_ANSWER_S)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Send the alerts of a micro-batch; none for no alerts. Raises: SinkAwayError if nobody answers in time."""
        if alerts.num_rows == 0:
            return
        lines = list(json_lines(alerts))
        status = self._send(b"\n".join(lines) + b"\n", batch_id)
        if status is not None:
            reason = f"{self._target.shown} answered {status}"
            refused = [
                orjson.dumps({"code": "webhook_refused", "reason": reason, "record": line.decode()}) for line in lines
            ]
            self._dead_letters.write(refused, batch_id)

    def close(self) -> None:
        """Close the connections and the sink of refused alerts."""
        self._client.close()
        self._dead_letters.close()

    def _send(self, body: bytes, batch_id: int) -> int | None:
        """Send a request; return None for a delivery, else the status with which the receiver refuses it."""
        deadline_s = time.monotonic() + self._target.wait_ms_max / 1_000
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer = self._client.post(self._target.url, content=body, headers=self._headers(body, batch_id))
            except httpx2.HTTPError as error:
                reason = (str(error) or type(error).__name__).replace(self._target.url, self._target.shown)
            else:
                if answer.is_success:
                    return None
                if answer.status_code != _TOO_MANY and answer.status_code < _SERVER_ERROR:
                    return answer.status_code
                reason = f"it answered {answer.status_code}"
            if time.monotonic() + pause_s > deadline_s:
                raise SinkAwayError(
                    f"the alerts of micro-batch {batch_id} did not reach {self._target.shown} in "
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
    """Return the signature, which a receiver compares with `x-cep-signature` by hmac.compare_digest."""
    return "sha256=" + hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
