"""The chain of an audit: a changed, removed, inserted or moved line is noticed."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cep.base.audit import ERASED_LINES, Head, Line, extended, is_audit, texts_of, verify, without_texts


def chain_of(count: int) -> tuple[Head, list[bytes]]:
    head, lines = Head(), []
    for number in range(count):
        texts = {"of": f"rule_{number}/snooze/card-{number}", "why": "Ægir asked"}
        facts = {"what": "change", "version": 1, "by": ["Ada", "Bjørn"]}
        head, line = extended(head, facts, texts, f"salt {number}")
        lines.append(line)
    return head, lines


def problems(lines: list[bytes], head: Head | None = None) -> tuple[str, ...]:
    return verify([Line(str(number), line) for number, line in enumerate(lines)], head).problems


def test_a_whole_chain_is_whole() -> None:
    head, lines = chain_of(12)
    assert problems(lines, head) == problems(lines) == problems([]) == problems([], Head()) == ()
    assert sorted(lines) == lines, "so the files of a job have them in order"
    assert all(is_audit(line) for line in lines)
    # A job that delivers at least once may write its last lines twice.
    assert problems([*lines[:3], lines[2], *lines[3:]], head) == ()


def test_the_end_is_missed_with_the_head_only() -> None:
    head, lines = chain_of(5)
    assert problems(lines[:3]) == ()
    assert "the end is missing" in problems(lines[:3], head)[0]
    assert "the end is missing" in problems([], head)[0]
    other, _ = extended(chain_of(4)[0], {"what": "other"})
    assert problems(lines, other) != ()


def test_each_kind_of_tampering_has_a_place() -> None:
    head, lines = chain_of(5)
    assert "line 4 follows line 2" in problems([*lines[:2], *lines[3:]], head)[0]
    assert "line 3 follows line 1" in problems([lines[0], lines[2], lines[1], *lines[3:]], head)[0]
    assert problems([*lines[:2], lines[2].replace(b"Ada", b"Eve"), *lines[3:]], head)[0].startswith("2:")
    _, made_up = extended(chain_of(2)[0], {"what": "another"})
    assert "was replaced" in problems([*lines[:2], made_up, *lines[3:]], head)[0]


def test_texts_can_be_erased_and_nothing_else() -> None:
    head, lines = chain_of(4)
    assert texts_of(lines[2]) == {"of": "rule_2/snooze/card-2", "why": "Ægir asked"}
    number, bare = without_texts(lines[2])
    assert number == 3
    assert b"card-2" not in bare
    assert b"salt" not in bare
    assert texts_of(bare) == {}
    assert without_texts(bare) == (3, bare)
    erased = [*lines[:2], bare, lines[3]]
    assert "line 3 has lost its texts" in problems(erased)[0]
    last, line = extended(head, {"what": "erasure", ERASED_LINES: [3]})
    assert problems([*erased, line], last) == problems([*lines, line], last) == ()
    assert verify([Line("", one) for one in (*erased, line)]).erased == (3,)
    also = [*erased[:3], without_texts(lines[3])[1], line]
    assert "line 4 has lost its texts" in problems(also, last)[0]
    changed = [*lines[:2], lines[2].replace(b"card-2", b"card-3"), lines[3], line]
    assert problems(changed, last)[0].startswith("2:")


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.data())
def test_any_tampering_is_noticed(count: int, data: st.DataObject) -> None:
    head, lines = chain_of(count)
    changed = list(lines)
    match data.draw(st.sampled_from(["byte", "remove", "insert", "move", "cut", "join"])):
        case "byte":
            number = data.draw(st.integers(0, count - 1))
            place = data.draw(st.integers(0, len(lines[number]) - 1))
            byte = data.draw(st.binary(max_size=1))
            changed[number] = lines[number][:place] + byte + lines[number][place + 1 :]
        case "remove":
            del changed[data.draw(st.integers(0, count - 1))]
        case "insert":
            other = extended(chain_of(data.draw(st.integers(0, count)))[0], {"what": "inserted"})[1]
            changed.insert(data.draw(st.integers(0, count)), other)
        case "move":
            moved = changed.pop(data.draw(st.integers(0, count - 1)))
            changed.insert(data.draw(st.integers(0, count - 1)), moved)
        case "cut":
            changed = changed[: data.draw(st.integers(0, count))]
        case _:
            changed = [b"".join(changed)]
    assert bool(problems(changed, head)) == (changed != lines)


def test_a_chain_that_somebody_made_up_is_no_reason_to_stop() -> None:
    """The hashes are right, because anyone can compute them. Its values have another type, or are too long."""
    body = {"code": "audit", "number": "9" * 5_000, "previous": Head().hash, "what": "change"}
    listed = {**body, "number": "000000000001", "sealed": digest_of([1])}
    for line in ({**body, "hash": digest_of(body)}, {**listed, "hash": digest_of(listed), "texts": [1]}):
        data = json.dumps(line, separators=(",", ":")).encode()
        assert texts_of(data) == {}
        assert verify([Line("here", data)]).problems == ("here: is no line of an audit, or was changed",)


def digest_of(values: object) -> str:
    return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()
