"""A withdrawn key counts only for records that it has already signed; the rest of the file stays as people wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.cli.main import main
from cep.model.rule import PauseRecord
from cep.rulebook.changes import change_path, write_change
from cep.rulebook.signers import read_trust, withdraw
from cep.rulebook.statement import digest_of, sign
from cep.rulebook.trust import reason_against
from tests.rulebook.people import ADA, BOB, EVE, ROOT, RULE_SET, by_two, write_key, write_signers

PAUSE = PauseRecord(id="r1", version=3)


def signed_folder(tmp_path: Path) -> Path:
    """Return the signers of a folder in which Ada and Bob have signed a pause, and Bob alone the next one."""
    path = write_signers(tmp_path / "signed" / "signers.toml", "# who may\n[people]\npause = 1")
    both = by_two(PAUSE)
    alone = sign(PAUSE.model_copy(update={"version": 4}), BOB, RULE_SET, (3, digest_of(both)))
    for record in (both, alone):
        write_change(change_path(tmp_path, record), [record])
    return path


@pytest.mark.parametrize(("key", "last"), [(ADA, 3), (BOB, 4)])
def test_what_it_has_signed_counts_and_nothing_else(key: object, last: int, tmp_path: Path) -> None:
    signer = ADA if key is ADA else BOB
    path = signed_folder(tmp_path)
    trust, only = withdraw(path, signer.public, ROOT)
    assert len(only) == last - 2
    assert (trust, trust.version) == (read_trust(path, ROOT.public), 2)
    for version in (3, 4, 5):
        record = PAUSE.model_copy(update={"version": version})
        refusal = reason_against(sign(record, signer, RULE_SET), trust)
        assert (refusal is None) == (version <= last)
        other = record.model_copy(update={"reason": "another record of the version"})
        assert reason_against(sign(other, signer, RULE_SET), trust) is not None
    assert "# who may" in path.read_text()
    assert withdraw(path, signer.public, ROOT)[0].signers == trust.signers, "again changes the version alone"
    assert read_trust(path, ROOT.public).version == 3


def test_what_is_not_signed_is_not_signed_on_the_way(tmp_path: Path) -> None:
    path = signed_folder(tmp_path)
    with pytest.raises(UsageError, match="no signer with the key"):
        withdraw(path, EVE.public, ROOT)
    with pytest.raises(UsageError, match="not what the root key has signed"):
        withdraw(path, ADA.public, EVE)
    path.write_text(path.read_text().replace("pause = 1", "pause = 2"))
    with pytest.raises(UsageError, match="not what the root key has signed"):
        withdraw(path, ADA.public, ROOT)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = signed_folder(tmp_path)
    root = write_key(tmp_path / "root.pem", ROOT)
    assert main(["keys", "withdraw", str(path), "--key", ADA.public, "--sign-with", str(root)]) == 0
    assert "counts for 1 record(s)" in capsys.readouterr().out
