"""A change to a signed record is noticed, in any part of the record."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cep.model.rule import (
    HeartbeatRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    SnoozeRecord,
    parse_control,
)
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.statement import Signable, approve, digest_of, sign
from cep.rulebook.trust import reason_against
from tests.rulebook.people import ADA, BOB, EVE, RULE_SET, TRUST, by_two
from tests.rulebook.records import SCHEMA, new_book, retire, upsert

SIGNED: list[Signable] = [
    by_two(upsert(2, params={"large": 7})),
    by_two(retire(3)),
    by_two(RollbackRecord(id="r", version=3, to_version=1, rule=upsert(1))),
    by_two(PauseRecord(id="r", version=1, reason="floods")),
    by_two(ResumeRecord(id="r", version=2)),
    by_two(SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", key="c1", by="ada")),
    by_two(ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a", "b"])),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SIGNED), st.data())
def test_any_changed_byte_is_noticed(record: Signable, data: st.DataObject) -> None:
    raw = record.to_json()
    place = data.draw(st.integers(0, len(raw) - 1))
    changed = (
        raw[:place] + data.draw(st.sampled_from([b"", b"0", b"1", b'"', b"a", b"\xff", b" ", b"}"])) + raw[place + 1 :]
    )
    _assert_noticed(record, changed)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, child in children for place in _places(child, (*path, name)))][0 if path else 1 :]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SIGNED), st.data())
def test_any_changed_value_is_noticed(record: Signable, data: st.DataObject) -> None:
    document = json.loads(record.to_json())
    path = data.draw(st.sampled_from(_places(document)))
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    if data.draw(st.booleans()):
        del inner[path[-1]]
    else:
        inner[path[-1]] = data.draw(
            st.sampled_from([0, 1, 5, "", "x", "draft", "ed25519:" + "0" * 64, "0" * 128, [], {}, None, True])
        )
    _assert_noticed(record, json.dumps(document).encode())


def _assert_noticed(record: Signable, changed: bytes) -> None:
    parsed, problems = parse_control(changed)
    if parsed is None:
        assert problems
    elif isinstance(parsed, HeartbeatRecord) or parsed != record:
        assert isinstance(parsed, HeartbeatRecord) or reason_against(parsed, TRUST) is not None or (
            # Resumptions need one person: they stay valid without the second.
            parsed.kind == "resume" and parsed.model_copy(update={"signed": record.signed}) == record
        )  # fmt: skip


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(1, 4),
        st.sampled_from([{}, {"large": 7}]),
        st.integers(0, 3),
        st.sampled_from(["both", "both", "both", "one", "none", "self", "eve"]),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 8))
def test_only_what_two_have_signed_counts_and_never_goes_back(steps: list[Any], cut: int) -> None:
    """The oracle: the version of each rule only rises, by records that both have signed as a change of the last one."""
    book = new_book()
    book.trust = TRUST
    applied: dict[str, tuple[int, str]] = {}
    for number, (rule_id, version, params, past, who) in enumerate(steps):
        record = upsert(version, rule_id, params=params)
        last, digest = applied.get(rule_id, (0, ""))
        before = (past, digest if past == last else "f" * 64 if past else "")
        signed: Signable = sign(record, EVE if who == "eve" else ADA, RULE_SET, before)
        signed = approve(signed, {"self": ADA}.get(who, BOB)) if who != "one" else signed
        signed = record if who == "none" else signed
        counts = who == "both" and version > last and (past >= last or rule_id not in applied)
        outcome = book.apply(signed, 1_000 + number)
        assert (outcome.kind == "applied") == counts, outcome
        if counts:
            applied[rule_id] = version, digest_of(record)
        assert {name: (v, book.rules[name].live[-1].entry is not None) for name, (v, _) in applied.items()} == {
            name: (v, True) for name, v in book.report().last_versions.items()
        }
        if number == cut:  # a restart
            book = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
            book.trust = TRUST
