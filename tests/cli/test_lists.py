"""`cep lists`, and lists in `cep rules publish`, on a broker; a rulebook of this process replaces the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cep.cli.main import main
from cep.rulebook.deploy import schema_of
from cep.rulebook.files import read_rules
from cep.rulebook.rulebook import Rulebook
from cep.runners.control_topic import read_control_topic
from tests.cli.test_publish import NUMBERS, Answering
from tests.real_kafka import KafkaCluster

PATTERN = """
event payment { tx_id id  event_time time  card_id string }
list blocked: string from "blocked.csv"
list watch: prefix

## Cards that are known.
pattern listed(cards: list of string = blocked) by card_id {
  seq    x
  where  x: payment  card_id in cards or card_id in watch
}

test "in the list" of listed {
  c1: 0s payment
  expect match on c1
}
test "in no list" of listed {
  c9: 0s payment
  expect none
}
"""
RULE = """
id = "listed"
version = 1
pattern = "listed"
file = "../patterns/p.cep"
status = "live"
severity = "low"
owner = "o"
message = "m"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules").mkdir()
    (tmp_path / "patterns").mkdir()
    (tmp_path / "patterns" / "p.cep").write_text(PATTERN)
    (tmp_path / "patterns" / "blocked.csv").write_text("blocked\nc1\nc2\nc1\n")
    (tmp_path / "rules" / "listed.toml").write_text(RULE)
    assert main(["fmt", str(tmp_path / "patterns")]) == 0
    assert main(["rules", "lock", "--rules", str(tmp_path / "rules")]) == 0
    return tmp_path / "rules"


@pytest.fixture
def job(kafka_broker: KafkaCluster, folder: Path) -> Iterator[Answering]:
    name = f"lists-{next(NUMBERS)}"
    for topic in (name, f"{name}-status"):
        kafka_broker.create(topic, 1)
    answering = Answering(kafka_broker.address, name)
    answering.book = Rulebook(schema_of(read_rules(folder)[0]), None)
    with answering:
        yield answering


def held(job: Answering) -> dict[str, tuple[int, int]]:
    return {report.name: (report.version, report.entries) for report in job.book.report().lists}


def test_the_life_of_a_list(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish = ["rules", "publish", "--rules", str(folder), *job.flags]
    assert main([*publish, "--dry-run"]) == 0
    assert "list blocked" in capsys.readouterr().out
    assert main(publish) == 0
    assert held(job) == {"blocked": (1, 2)}
    assert job.book.report().lists_missing == (("watch", "prefix"),)
    assert main(publish) == 0
    assert "nothing to send" in capsys.readouterr().out
    assert main(["lists", "add", "blocked", "c7", "c8", *job.flags]) == 0
    assert held(job) == {"blocked": (2, 4)}
    assert main(["lists", "remove", "blocked", "c1", *job.flags]) == 0
    assert main(["lists", "add", "watch", "9", "--of", "prefix", *job.flags]) == 0
    assert held(job) == {"blocked": (3, 3), "watch": (1, 1)}
    capsys.readouterr()
    assert main(["lists", "show", "--rules", str(folder), *job.flags]) == 0
    printed = capsys.readouterr().out
    assert "the job holds" in printed
    assert job.book.report().lists[0].digest[:12] in printed
    # The file counts again, and the entries that it has replaced are forgotten.
    assert main(publish) == 0
    assert held(job)["blocked"] == (4, 2)
    places, _ = read_control_topic(job.control)
    assert len(places) >= 4
    (folder.parent / "more.txt").write_text("\n".join(f"c{n}" for n in range(1_000)))
    assert main(["lists", "replace", "blocked", "--from", str(folder.parent / "more.txt"), *job.flags]) == 0
    assert held(job)["blocked"] == (5, 1_000)


def test_what_is_wrong_with_a_list(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lists", "add", "nets", "10.0.0.1/8", "--of", "cidr", *job.flags]) == 1
    assert "CEP802 entry 1 is `10.0.0.1/8`" in capsys.readouterr().out
    assert main(["lists", "add", "nets", "x", *job.flags]) == 2
    assert "no list nets is known; say with --of" in capsys.readouterr().err
    assert main(["lists", "add", "nets", "x", "--of", "text", *job.flags]) == 2
    assert main(["lists", "add", "nets", "--of", "string", *job.flags]) == 2
    assert "give the entries, or a file" in capsys.readouterr().err
    # A card number is not even sent if a rule of the topic or the settings' folder has tokens there.
    (folder / "cards.toml").write_text(RULE.replace('"listed"', '"cards"').replace("p.cep", "cards.cep"))
    cards = (
        PATTERN.partition("test ")[0]
        .replace("card_id string", "card_id pan")
        .replace("pattern listed", "pattern cards")
    )
    (folder.parent / "patterns" / "cards.cep").write_text(
        cards.replace('from "blocked.csv"', "").replace(" or card_id in watch", "")
    )
    (folder.parent / "cep.toml").write_text(f'[job]\nrules = "{folder}"\n')
    flags = [*job.flags, "--conf", str(folder.parent / "cep.toml")]
    assert main(["lists", "add", "blocked", "4111111111111111", "--of", "string", *flags]) == 1
    printed = capsys.readouterr().out
    assert "1 of its entries are no tokens" in printed
    assert "nothing is sent" in printed
    assert "4111" not in printed
    assert main(["lists", "add", "shops", "s1", "--of", "string", "--why", "4111 1111 1111 1111 called", *flags]) == 2
    assert "has a card number" in capsys.readouterr().err
    assert read_control_topic(job.control) == ([], 0)
    (folder / "cards.toml").unlink()
    (folder.parent / "patterns" / "blocked.csv").unlink()
    assert main(["rules", "publish", "--rules", str(folder), *job.flags]) == 1
    assert "CEP801" in capsys.readouterr().out
    assert main(["lists", "show", "--rules", str(folder)]) == 1
