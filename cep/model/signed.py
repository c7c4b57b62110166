"""The signatures of a control record, as JSON ↔ checked values. rulebook/statement.py defines the signed statement.

    {"rule_set": "payments", "previous_version": 1, "previous": HASH,
     "author": {"key": "ed25519:…", "signature": HEX}, "approver": {…}}

Tested by: tests/rulebook/test_trust.py
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cep.base.limits import RULE_TEXT_CHARS_MAX

_VERSION_MAX = 2**31 - 1


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Signature(_Strict):
    """A public key, and its signature."""

    key: Annotated[str, Field(pattern=r"^ed25519:[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Signed(_Strict):
    """Who stands for a record, in which rule set, and which version it changes: 0 and no hash for the first."""

    rule_set: Annotated[str, Field(min_length=1, max_length=RULE_TEXT_CHARS_MAX)]
    previous_version: Annotated[int, Field(ge=0, le=_VERSION_MAX)] = 0
    previous: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    author: Signature
    approver: Signature | None = None
