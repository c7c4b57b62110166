"""A Delta table has each alert once even if it comes twice, and shows a new job which alerts were sent."""

from pathlib import Path
from random import Random

import pytest

from cep.base.errors import SinkError, UsageError
from cep.base.exits import Exit
from cep.cli.main import main
from cep.sinks.json_form import json_lines
from tests.output_of import OutputOf
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_run import ROOT
from tests.seeds import seeds
from tests.sinks.alerts import alert_table

deltalake = pytest.importorskip("deltalake")
lake = pytest.importorskip("cep.sinks.lake")


def ids(folder: Path) -> list[str]:
    return sorted(deltalake.DeltaTable(str(folder)).to_pyarrow_table(columns=["alert_id"])["alert_id"].to_pylist())


@pytest.mark.parametrize("seed", seeds(6))
def test_what_comes_again_is_there_once(seed: int, tmp_path: Path) -> None:
    """Two jobs write into one table; their processes begin again at numbers that they have sent."""
    chance, folder = Random(seed), tmp_path / "alerts"
    sent: set[str] = set()
    for job in ("one", "two"):
        number, first = 0, 1_000 * (job == "two")
        for _ in range(4):
            sink = lake.LakeSink(str(folder), job)
            for again in range(max(0, number - chance.randrange(3)), number + 3):
                sink.write(alert_table(first + 10 * again, again % 4), again)
                sent |= {f"a{first + 10 * again + n}" for n in range(again % 4)}
                number = max(number, again)
            sink.close()
    assert ids(folder) == sorted(sent), f"seed {seed}"
    with pytest.raises(SinkError, match="comes with 2 other alerts: another job of this name"):
        lake.LakeSink(str(folder), "one").write(alert_table(77_000, 2), 1)
    assert ids(folder) == sorted(sent)


def test_recall_gives_what_came_since(tmp_path: Path) -> None:
    sink = lake.LakeSink(str(tmp_path), "job")
    assert sink.recall(3, 0) == lake.Recalled(frozenset(), 3)
    sink.write(alert_table(0, 2), 4)
    sink.write(alert_table(2, 2), 9)
    assert sink.recall(9, 0) == lake.Recalled(frozenset(), 9)
    recalled = sink.recall(4, 0)
    assert recalled.number == 9
    assert {"a2", "a3"} <= recalled.alert_ids <= {"a0", "a1", "a2", "a3"}
    assert sink.recall(4, 2**53) == lake.Recalled(frozenset(), 9), "no file is of the future"


def test_a_table_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SinkError, match=r"2 alerts of micro-batch 1 did not reach the table .*nothing is lost"):
        lake.LakeSink(str(tmp_path / "file" / "below"), "job").write(alert_table(0, 2), 1)


def test_a_job_writes_a_table(tmp_path: Path, output_of: OutputOf) -> None:
    """The rows of the table equal the alerts of the replay. A second start adds nothing."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(day()))
    arguments = [
        "run", "--rules", str(ROOT / "rules"), "--events", str(path), "--alerts", f"delta:{tmp_path / 'alerts'}",
        "--available-now",
    ]  # fmt: skip
    assert "delta: needs --checkpoint" in output_of(main(arguments), Exit.USAGE).err
    arguments += ["--checkpoint", str(tmp_path / "job")]
    for _ in range(2):
        assert main(arguments) == 0
        table = deltalake.DeltaTable(str(tmp_path / "alerts")).to_pyarrow_table()
        assert sorted(json_lines(table)) == sorted(expected(list(day()), deployment(), tmp_path))


@pytest.mark.parametrize("place", ["s3://me:t0p@bucket/alerts", "abfs://container/alerts?sig=t0p"])
def test_a_secret_in_the_place_is_refused_and_not_shown(place: str) -> None:
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as refused:
        lake.LakeSink(place, "job")
    assert "t0p" not in str(refused.value)
