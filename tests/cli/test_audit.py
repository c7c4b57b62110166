"""`cep rules audit verify` against attackers who can write into the folder of a job: it finds a cut or new trail."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from cep.base.audit import Head, extended
from cep.base.exits import Exit
from cep.cli.main import main
from cep.rulebook.statement import with_nonce
from cep.runners.rule_output import STATUS_FILE
from cep.state.manifest_key import KEY
from tests.runners.embedded.test_audited import PAUSE, SNOOZE, Plain

SECRET = "0123456789abcdef"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a job with a key, and an audit of some lines."""
    monkeypatch.setenv(KEY, SECRET)
    job = Plain(tmp_path)
    job.send("1.jsonl", with_nonce(SNOOZE), with_nonce(PAUSE))
    assert job.run("job", *job.control) == 0
    return tmp_path / "job"


def verify(job: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["rules", "audit", "verify", str(job / "dead_letters")])
    return code, capsys.readouterr().out


def trail_file(job: Path) -> Path:
    (path,) = (path for path in (job / "dead_letters").glob("*.jsonl") if b'"code":"audit"' in path.read_bytes())
    return path


def made_up(count: int) -> tuple[Head, bytes]:
    """Return a whole chain of other lines, and its head."""
    head, lines = Head(), []
    for _ in range(count):
        head, line = extended(head, {"what": "first", "signers_version": None}, {"why": "nothing happened"}, "salt")
        lines.append(line + b"\n")
    return head, b"".join(lines)


def test_a_trail_that_was_cut_or_written_again_is_found(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = verify(job, capsys)
    assert code == 0, printed
    path, status = trail_file(job), job / STATUS_FILE
    whole, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    code, printed = verify(job, capsys)
    assert (code, "the end is missing" in printed, "checkpoint" in printed) == (Exit.FINDINGS, True, True)

    # The attacker also writes a whole trail and its head, but lacks the key.
    head, path_bytes = made_up(len(lines))
    path.write_bytes(path_bytes)
    job_status = orjson.loads(status.read_bytes())
    status.write_text(json.dumps({**job_status, "audit": {**job_status["audit"], **head.to_json()}}))
    code, printed = verify(job, capsys)
    assert (code, "is not signed with" in printed) == (Exit.FINDINGS, True)
    status.unlink()
    code, printed = verify(job, capsys)
    assert (code, "which checkpoint" in printed) == (Exit.FINDINGS, True)
    for checkpoint in (job / "checkpoints").glob("*.manifest"):
        checkpoint.unlink()
    code, printed = verify(job, capsys)
    assert (code, "no signed head was found" in printed) == (Exit.FINDINGS, True)

    status.write_text(json.dumps(job_status))
    path.write_bytes(whole)
    code, printed = verify(job, capsys)
    assert code == 0, printed


def test_a_head_counts_without_a_key_and_verify_says_so(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(KEY)
    code, printed = verify(job, capsys)
    assert (code, "CEP_MANIFEST_KEY is not set" in printed) == (0, True)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(trail_file(job).read_bytes().splitlines(keepends=True)[:-1]))
    assert main(["rules", "audit", "verify", str(copy)]) == 0
    assert "lines missing at the end are not noticed" in capsys.readouterr().out
    assert main(["rules", "audit", "verify", str(copy), "--checkpoint", str(job)]) == Exit.FINDINGS
