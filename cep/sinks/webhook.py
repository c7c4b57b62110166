"""Alerts → signed POST requests to a URL, one for each micro-batch that has any.

    POST URL
    content-type     application/x-ndjson; one alert a line (json_form.py)
    x-cep-batch      number of the micro-batch; after a crash the same alerts come again under the same number.
    x-cep-timestamp  seconds since 1970. It is signed too, so an old request cannot be sent again later.
    x-cep-signature  sha256=HEX, the HMAC of "TIMESTAMP.BODY" with the secret that both sides know

| answer | what it concerns | what the sink does |
| --- | --- | --- |
| 200 to 299 | | the alerts are delivered |
| 400, 413, 422 | an alert | sends the halves of the request, until single alerts remain; those go to the dead letters |
| any other, or none | the receiver | raises SinkAwayError: the runner reports it and sends the same request again |

Receivers tell repeats by `alert_id`.

Alerts name people and cards, so another machine gets them over https:// only, unless the settings say `insecure`. A URL
with a user or a password is refused. Messages and dead letters show a URL without its query, which may hold a token.
Tested by: tests/sinks/test_webhook.py, tests/cli/test_run.py, tests/runners/spark/test_live_crash.py
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from cep.base.errors import UsageError
from cep.model.setting_types import is_loopback
from cep.sinks.base import RefusedAlerts, sink_away
from cep.sinks.json_form import json_lines

if TYPE_CHECKING:
    import httpx2

_ANSWER_S = 10.0
# Answers that judge the content of a request. All others judge the sender, the address or the moment.
_REFUSES_ALERTS = frozenset((400, 413, 422))
_REASONS = {401: "access", 403: "access", 407: "access", 404: "missing", 405: "missing", 410: "missing"}
_REDIRECTS, _CLIENT_ERRORS = 300, 400


@dataclass(frozen=True)
class WebhookTarget:
    """The URL that gets alerts and the secret that signs them. Neither is printed; messages use `shown`."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)
    is_insecure: bool = False

    def __post_init__(self) -> None:
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
        import httpx2  # noqa: PLC0415 a job without such a sink starts faster

        # The library that sends the alerts parses the URL, so that the host checked here is the host that gets them.
        try:
            url = httpx2.URL(self.url)
        except httpx2.InvalidURL:
            url = httpx2.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise UsageError("the URL of a webhook cannot be read; write it as https://HOST/PATH") from None
        return url


class WebhookSink:
    """Requests to a URL. `refused` takes alerts that the receiver does not want."""

    def __init__(self, target: WebhookTarget, refused: RefusedAlerts) -> None:
        import httpx2  # noqa: PLC0415 as above

        self._library = httpx2
        self._target = target
        self.refused = refused
        self._client = httpx2.Client(timeout=_ANSWER_S)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Send the alerts of a micro-batch, if any. Raises: SinkAwayError if the receiver takes none."""
        if alerts.num_rows:
            self.send(list(json_lines(alerts)), batch_id)

    def send(self, lines: Sequence[bytes], batch_id: int) -> None:
        """Send alerts as JSON. A refused request is repeated in halves, so only refused alerts become dead letters."""
        refused: dict[int, list[bytes]] = {}
        requests = [list(lines)]  # a request each, the next one last
        while requests:
            part = requests.pop()
            status = self._status(part, batch_id)
            if status is not None and len(part) > 1:
                half = len(part) // 2
                requests += [part[half:], part[:half]]
            elif status is not None:
                refused.setdefault(status, []).extend(part)
        if refused:
            statuses = ", ".join(str(status) for status in sorted(refused))
            refused_lines = [line for part in refused.values() for line in part]
            self.refused.take(refused_lines, f"{self._target.shown} answered {statuses}", batch_id)

    def close(self) -> None:
        """Close the connections and the sink of refused alerts."""
        self._client.close()
        self.refused.close()

    def _status(self, lines: Sequence[bytes], batch_id: int) -> int | None:
        """Send a request; return None for a delivery, or the status with which the receiver refuses its alerts. Raises:
        SinkAwayError for any other answer: it concerns the receiver, and the same request may succeed later."""
        alerts_text = f"{len(lines)} alerts of micro-batch {batch_id}"
        body, stamp = b"\n".join(lines) + b"\n", str(int(time.time()))
        headers = {
            "content-type": "application/x-ndjson",
            "x-cep-batch": str(batch_id),
            "x-cep-timestamp": stamp,
            "x-cep-signature": signature(self._target.secret, stamp, body),
        }
        try:
            answer = self._client.post(self._target.url, content=body, headers=headers)
        except self._library.HTTPError as error:
            error_text = (str(error) or type(error).__name__).replace(self._target.url, self._target.shown)
            raise sink_away(alerts_text, self._target.shown, error_text, "no_answer") from error
        if answer.is_success:
            return None
        status = answer.status_code
        if status in _REFUSES_ALERTS:
            return status
        reason = _REASONS.get(status, "missing" if _REDIRECTS <= status < _CLIENT_ERRORS else "busy")  # 3xx: moved
        raise sink_away(alerts_text, self._target.shown, f"it answered {status}", reason)


def signature(secret: bytes, stamp: str, body: bytes) -> str:
    """Return the signature, which a receiver compares with `x-cep-signature` by hmac.compare_digest."""
    return "sha256=" + hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
