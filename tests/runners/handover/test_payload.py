"""The JSON part of a savepoint: it comes back, and one that no build has written is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.runners.handover.payload import Payload
from tests.runners.handover.test_group_entries import JOB

ENGINE = {"rulebook": "", "held_memory": [], "watermark_ms": 5, "times": {"topic[0]": [3, False]}}
GOOD = Payload(JOB.to_json(), {"records": ["{}"]}, 7, ENGINE, {"events": {"topic[0]": 17}}, {"events": 9})


def test_a_payload_comes_back() -> None:
    assert Payload.from_bytes(GOOD.to_bytes(), "here").to_bytes() == GOOD.to_bytes()


@pytest.mark.parametrize("value", [None, "text", -1.5, [1], {"a": "b"}, "absent"], ids=repr)
def test_a_field_that_is_absent_or_of_another_type_is_refused(value: Any) -> None:
    places = [("job",), ("rules",), ("rules", "records"), ("checkpoint",), ("job", "event_types")]
    places += [("checkpoint", name) for name in ("format", "base", "engine", "positions", "totals")]
    places += [("checkpoint", "engine", name) for name in ENGINE]
    for *path, last in places:
        if (value == "text" and last == "rulebook") or (value == [1] and last == "held_memory"):
            continue
        whole = json.loads(GOOD.to_bytes())
        fields = whole
        for step in path:
            fields = fields[step]
        if value == "absent":
            del fields[last]
        else:
            fields[last] = value
        with pytest.raises((StateCorruptError, StateFormatError), match="savepoint in here"):
            Payload.from_bytes(json.dumps(whole).encode(), "here")


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"{", b"null", b"\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateCorruptError, match="does not describe a job"):
        Payload.from_bytes(data, "here")
