"""A request to erase keys counts for exactly these keys, signed by two people of the job's signers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from cep.base.errors import UsageError
from cep.rulebook.erasure import ErasureRequest, check_request, digests_of, read_request, write_request
from cep.rulebook.trust import Trust
from tests.rulebook.people import ADA, ADA_AGAIN, BOB, EVE, SIGNERS, TRUST

GONE = ["card-17", '["card-17","m3"]']


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    assert not write_request(tmp_path / "request.json", GONE, TRUST, ADA)
    return tmp_path / "request.json"


def test_two_people_sign_the_keys(request_file: Path) -> None:
    with pytest.raises(UsageError, match="nobody has approved"):
        check_request(read_request(request_file), GONE, TRUST)
    for key in (ADA, ADA_AGAIN):
        with pytest.raises(UsageError, match="its author has approved"):
            write_request(request_file, GONE, TRUST, key)
    with pytest.raises(UsageError, match="none of the signers file"):
        write_request(request_file, GONE, TRUST, EVE)
    with pytest.raises(UsageError, match="signed for other keys"):
        write_request(request_file, GONE[:1], TRUST, BOB)
    assert write_request(request_file, reversed(GONE), TRUST, BOB)
    signed = read_request(request_file)
    check_request(signed, GONE, TRUST)
    assert all(key not in request_file.read_text() for key in GONE)
    assert signed.digests != digests_of(GONE, "0" * 32), "without the nonce nobody can try keys"
    for keys in (GONE[:1], [*GONE, "c2"], ["card-1", GONE[1]], []):
        with pytest.raises(UsageError, match="signed for other keys"):
            check_request(signed, keys, TRUST)


def narrowed(**changes: object) -> Trust:
    return replace(TRUST, signers=(replace(SIGNERS[0], **changes), *SIGNERS[1:]))  # type: ignore[arg-type]


@pytest.mark.parametrize("trust", [narrowed(may=("approve",)), narrowed(only=())])
def test_a_person_without_the_right_signs_none(request_file: Path, trust: Trust) -> None:
    write_request(request_file, GONE, TRUST, BOB)
    with pytest.raises(UsageError, match="may not sign"):
        check_request(read_request(request_file), GONE, trust)


@pytest.mark.parametrize("name", ["rule_set", "nonce", "digests", "author", "approver"])
def test_a_changed_request_is_refused(request_file: Path, name: str) -> None:
    write_request(request_file, GONE, TRUST, BOB)
    values = orjson.loads(request_file.read_bytes())
    other: dict[str, object] = {
        "rule_set": "others", "nonce": "0" * 32, "digests": digests_of(["c9"], values["nonce"]),
        "author": values["approver"], "approver": values["author"],
    }  # fmt: skip
    changed = ErasureRequest.model_validate_json(orjson.dumps({**values, name: other[name]}))
    with pytest.raises(UsageError):
        check_request(changed, GONE, TRUST)
    keys = ["c9"] if name == "digests" else GONE
    if name == "nonce":
        changed = changed.model_copy(update={"digests": digests_of(GONE, "0" * 32)})
    if name != "rule_set":
        with pytest.raises(UsageError, match=r"not what|its author has approved"):
            check_request(changed, keys, TRUST)


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(UsageError, match="no request to erase keys"):
        read_request(tmp_path / "request.json")
