"""Keys of people and signatures over bytes; in the chain of an audit a changed, removed or moved line is noticed."""

import hashlib
import json
import stat
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cep.base.audit import ERASED_LINES, Head, Line, add_line, is_audit, texts_of, verify, without_texts
from cep.base.errors import UsageError
from cep.base.signing import _SMALL_ORDER, is_public_key, is_signed, new_key, read_key
from tests.rulebook.people import ADA


def test_a_key_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    key = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "ada.pub").read_text() == f"{key.public}\n"
    assert is_public_key(key.public)
    assert read_key(path).public == key.public
    assert is_signed(b"text", read_key(path).sign(b"text"), key.public)
    with pytest.raises(UsageError, match="name another file"):
        new_key(path)
    (tmp_path / "bob.pub").write_text("of another key")
    with pytest.raises(UsageError, match=r"bob\.pub cannot be made"):
        new_key(tmp_path / "bob.pem")
    assert not (tmp_path / "bob.pem").exists(), "no private key stays without its public one"


def test_a_passphrase_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    key = new_key(path, "correct horse")
    assert read_key(path, "correct horse").public == key.public
    for wrong in (None, "", "battery"):
        with pytest.raises(UsageError, match="CEP_KEY_PASSPHRASE"):
            read_key(path, wrong)
    new_key(tmp_path / "bob.pem")
    with pytest.raises(UsageError, match="has no passphrase"):
        read_key(tmp_path / "bob.pem", "correct horse")


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(UsageError, match="cannot be read"):
        read_key(path)
    path.write_bytes(b"\x00nothing")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="is no private key"):
        read_key(path)
    new_key(tmp_path / "ada.pem").sign(b"")
    (tmp_path / "ada.pem").chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_key(tmp_path / "ada.pem")
    with pytest.raises(UsageError, match="is no file"):
        read_key(Path("/dev/null"))


def test_a_key_is_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    key = new_key(path)
    secret = key._key.private_bytes_raw().hex()
    assert secret not in repr(key)
    assert secret not in str(vars(type(key)))


@given(st.binary(max_size=40), st.integers(0, 127), st.sampled_from("0123456789abcdef"))
def test_another_signature_or_message_is_noticed(message: bytes, index: int, digit: str) -> None:
    signature = ADA.sign(message)
    changed = signature[:index] + digit + signature[index + 1 :]
    assert is_signed(message, changed, ADA.public) == (changed == signature)
    assert not is_signed(message + b"x", signature, ADA.public)


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:" + "0" * 63, "ED25519:" + "0" * 64, "rsa:" + "0" * 64])
def test_what_is_no_public_key_signs_nothing(text: str) -> None:
    assert not is_signed(b"", "0" * 128, text)


# The curve in its plainest form (RFC 8032, 5.1), to multiply the point of each refused key by eight.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (x1, y1), (x2, y2) = one, other
    product = _D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, _P)
    return x % _P, (y1 * y2 + x1 * x2) * pow(1 - product, -1, _P) % _P


def _point(y: int, odd: int) -> tuple[int, int] | None:
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    x = x if x * x % _P == square else x * pow(2, (_P - 1) // 4, _P) % _P
    return None if x * x % _P != square else (x if x % 2 == odd else -x % _P, y)


def test_keys_that_anybody_can_sign_for_are_refused() -> None:
    """All keys of small order, in each spelling. The library accepts a signature of zeros for some of them."""
    assert len(_SMALL_ORDER) == 5, "eight points: three have x = 0 or one spelling of it"
    for y in _SMALL_ORDER:
        for odd in (0, 1):
            point = _point(y, odd)
            assert point is not None
            for _ in range(3):
                point = _added(point, point)
            assert point == (0, 1), "eight times the point is the neutral one"
        for spelled in (y, y + _P):
            for sign_bit in (0, 1 << 255):
                if spelled < 1 << 255:
                    text = "ed25519:" + (spelled | sign_bit).to_bytes(32, "little").hex()
                    assert not is_public_key(text)
                    assert not is_signed(b"anything", (1).to_bytes(32, "little").hex() + "0" * 64, text)


def chain_of(count: int) -> tuple[Head, list[bytes]]:
    head, lines = Head(), []
    for number in range(count):
        texts = {"of": f"rule_{number}/snooze/card-{number}", "why": "Ægir asked"}
        facts = {"what": "change", "version": 1, "by": ["Ada", "Bjørn"]}
        head, line = add_line(head, facts, texts, f"salt {number}")
        lines.append(line)
    return head, lines


def problems(lines: list[bytes], head: Head | None = None) -> tuple[str, ...]:
    return verify([Line(str(number), line) for number, line in enumerate(lines)], head).problems


def test_a_whole_chain_is_whole() -> None:
    head, lines = chain_of(12)
    assert problems(lines, head) == problems(lines) == problems([]) == problems([], Head()) == ()
    assert sorted(lines) == lines, "so the files of a job have them in order"
    assert all(is_audit(line) for line in lines)


def test_the_last_lines_may_come_again_up_to_the_last_one() -> None:
    """A job that delivers at least once writes them again after a crash, from its last commit on."""
    head, lines = chain_of(4)
    for first, second, end in product(range(4), range(4), range(1, 5)):
        if max(first, second) < end:
            assert problems([*lines[:end], *lines[first:end], *lines[second:]], head) == ()
            copied = [*lines[:end], lines[first], *lines[end:]]
            assert bool(problems(copied, head)) == (first + 1 < end), "a copy of an earlier line alone"
            assert bool(problems([*lines, *lines[first : end - 1]], head)) == (first < end - 1)


def test_the_end_is_missed_with_the_head_only() -> None:
    head, lines = chain_of(5)
    assert problems(lines[:3]) == ()
    assert "the end is missing" in problems(lines[:3], head)[0]
    assert "the end is missing" in problems([], head)[0]
    other, _ = add_line(chain_of(4)[0], {"what": "other"})
    assert problems(lines, other) != ()


def test_each_kind_of_tampering_has_a_place() -> None:
    head, lines = chain_of(5)
    assert "line 4 follows line 2" in problems([*lines[:2], *lines[3:]], head)[0]
    assert "line 3 follows line 1" in problems([lines[0], lines[2], lines[1], *lines[3:]], head)[0]
    assert problems([*lines[:2], lines[2].replace(b"Ada", b"Eve"), *lines[3:]], head)[0].startswith("2:")
    _, made_up = add_line(chain_of(2)[0], {"what": "another"})
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
    last, line = add_line(head, {"what": "erasure", ERASED_LINES: [3]})
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
            other = add_line(chain_of(data.draw(st.integers(0, count)))[0], {"what": "inserted"})[1]
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
