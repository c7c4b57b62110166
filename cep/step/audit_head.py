"""The head of a job's audit ↔ JSON values, signed if the process has a key of manifests (state/manifest_key.py).

    {"count": 12, "hash": HASH, "signature": HEX}

The status of a job has the head, on its topic and in the checkpoint folder. Each checkpoint of `cep run` has it too. An
attacker who can write there without the key cannot forge a head for an audit that was cut or written again.
Tested by: tests/step/test_step.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cep.base.audit import Head
from cep.base.errors import StateCorruptError
from cep.state.manifest_key import check_fact, fact_signature


def head_values(head: Head) -> dict[str, Any]:
    """Return the head as JSON values, with a signature if there is a key. Raises: UsageError for an invalid key."""
    signature = fact_signature(_fact(head))
    return head.to_json() if signature is None else {**head.to_json(), "signature": signature}


def read_head(values: object, place: str) -> Head:
    """Parse the values of `head_values`, and check the signature if the process has a key; `place` is for messages.

    Raises: StateCorruptError, UsageError.
    """
    fields = values if isinstance(values, Mapping) else {}
    count, digest = fields.get("count"), fields.get("hash")
    if not isinstance(count, int) or isinstance(count, bool) or not isinstance(digest, str):
        raise StateCorruptError(f"the head of the audit in {place} cannot be read; name another place, or give --head")
    head = Head(count, digest)
    check_fact(_fact(head), fields.get("signature"), f"the head of the audit in {place}")
    return head


def sign_status(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a job's rules (rule_status.py) with the head of the audit signed, if it has one."""
    if "audit" not in status:
        return status
    saved = status["audit"]
    return {**status, "audit": head_values(Head(saved["count"], saved["hash"]))}


def _fact(head: Head) -> str:
    return f"audit head {head.count}:{head.hash}"
