"""A folder of one runner, given to a verb of the other: the message names the verb that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.exits import Exit
from cep.cli.doc_pages import DOCS
from cep.cli.main import main
from cep.runners.live_checkpoint import BEGINS_FOLDER, QUERY_FOLDER
from cep.sinks.base import TAKEN_OVER
from tests.cli.test_run import RULES
from tests.runners.embedded.cases import morning

ROWS = {
    "rescale": (["job", "rescale", "--partitions", "3"], "`cep job savepoint` with `cep job restore --groups 0-15`"),
    "live": (["live", "--rules", RULES, "--events", "."], "`cep job savepoint` and `cep job restore --engine spark`"),
}


@pytest.mark.parametrize("verb", ROWS)
def test_a_folder_of_cep_run(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()[:50]))
    words = ["run", "--rules", RULES, "--events", str(tmp_path / "events.jsonl"), "--available-now"]
    assert main([*words, "--checkpoint", str(tmp_path / "job")]) == Exit.CLEAN
    arguments, advice = ROWS[verb]
    assert main([*arguments, "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    printed = capsys.readouterr().err
    assert "is of `cep run`" in printed
    assert advice in printed


@pytest.mark.parametrize("name", [QUERY_FOLDER, BEGINS_FOLDER])
def test_a_folder_of_cep_live(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job" / name).mkdir(parents=True)
    words = ["run", "--rules", RULES, "--events", "-", "--available-now", "--checkpoint", str(tmp_path / "job")]
    assert main(words) == Exit.USAGE
    printed = capsys.readouterr().err
    assert "is of `cep live`" in printed
    assert "`cep job savepoint --portable` and `cep job restore`" in printed


def test_the_page_of_standbys_has_the_words_of_the_message() -> None:
    assert f"`{TAKEN_OVER}`" in (DOCS / "guides" / "standby.md").read_text(encoding="utf-8")
