"""`cep live` refuses senseless options before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.exits import Exit
from cep.cli.main import main

RULES = str(Path(__file__).parents[2] / "rules")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give the events"),
        (["--events", "x", "--topic", "y", "--bootstrap-servers", "z"], "give the events"),
        (["--topic", "y"], "needs --bootstrap-servers"),
        (["--events", "x", "--alerts", "kafka:alerts"], "needs --bootstrap-servers"),
        (["--events", "x", "--control", "a", "--control-topic", "b"], "not both"),
        (["--events", "x", "--dead-letter-topic", "d"], "needs --bootstrap-servers"),
        (
            ["--topic", "y", "--bootstrap-servers", "z", "--alerts", "kafka:a", "--dead-letter-topic", "a"],
            "a topic of its own",
        ),
        (["--topic", "y", "--bootstrap-servers", "z", "--format", "avro"], "avro needs the url of a schema registry"),
        (["--events", "x", "--alerts", "https://there/alerts"], "give the secret"),
        (["--events", "x", "--pages", "0"], "$.job.pages: input should be greater than or equal to 1 (--pages)"),
        (["--events", "x", "--key", "card_id,planet"], "no field `planet`"),
        (["--events", "x", "--key-groups", "0"], "$.job.key_groups: input should be greater"),
        (["--events", "x", "--connector", "spark"], "give its stream to `Rules.match_stream`"),
    ],
)
def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert main(["live", "--rules", RULES, "--checkpoint", str(checkpoint), *words]) == Exit.USAGE
    assert reason in capsys.readouterr().err
    assert not checkpoint.exists()


def test_rules_and_checkpoint_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live"]) == Exit.USAGE
    assert "give --rules" in capsys.readouterr().err
    assert main(["live", "--rules", RULES]) == Exit.USAGE
    assert "give --checkpoint" in capsys.readouterr().err


def test_a_time_without_a_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["live", "--rules", RULES, "--checkpoint", str(tmp_path), "--events", "x", "--lateness", "10"])
        == Exit.USAGE
    )
    assert "'10' is no time such as" in capsys.readouterr().err
