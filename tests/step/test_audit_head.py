"""The head of an audit is signed like a manifest, and a forger without the key cannot make one."""

from __future__ import annotations

import pytest

from cep.base.audit import Head, extended
from cep.base.errors import StateCorruptError
from cep.state.manifest_key import KEY
from cep.step.audit_head import head_values, read_head, sign_status

SECRET = "0123456789abcdef"


def test_with_and_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    head, _ = extended(Head(), {"what": "change"})
    plain = head_values(head)
    assert (plain, read_head(plain, "here")) == (head.to_json(), head)
    monkeypatch.setenv(KEY, SECRET)
    signed = head_values(head)
    assert sign_status({"audit": plain, "epoch": 1}) == {"audit": signed, "epoch": 1}
    assert sign_status({"epoch": 1}) == {"epoch": 1}
    assert read_head(signed, "here") == head
    for wrong in (plain, {**signed, "count": 0}, {**signed, "hash": Head().hash}, {**signed, "signature": 5}):
        with pytest.raises(StateCorruptError, match="the head of the audit in here is not signed"):
            read_head(wrong, "here")
    monkeypatch.setenv(KEY, SECRET[::-1])
    with pytest.raises(StateCorruptError, match="is not signed with"):
        read_head(signed, "here")
    monkeypatch.delenv(KEY)
    assert read_head(signed, "here") == head


@pytest.mark.parametrize("values", [None, [], {}, {"count": "1", "hash": "x"}, {"count": True, "hash": "x"}])
def test_what_is_no_head_is_refused(values: object) -> None:
    with pytest.raises(StateCorruptError, match="cannot be read"):
        read_head(values, "here")
