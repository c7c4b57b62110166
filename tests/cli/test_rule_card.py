"""The card of a rule."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cep.analysis.backtest import Backtest, Figures, Matches, ratio
from cep.cli.labelled import write_json
from cep.cli.main import main
from cep.rulebook.changes import change_path, write_change
from cep.rulebook.files import read_rules
from cep.rulebook.statement import sign
from tests.rulebook.people import ADA, ROOT, RULE_SET, by_two, write_signers

CHECKOUT = Path(__file__).parents[2]
RULE = "card_testing"


def card(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    capsys.readouterr()
    assert main(["rules", "card", RULE, "--rules", str(folder), *flags]) == 0
    return capsys.readouterr().out


def test_a_card_has_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rules", "patterns"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    folder = tmp_path / "rules"
    plain = card(folder, capsys)
    assert plain.startswith("# card_testing\n\nSeveral small declines")
    assert "| owner | card-fraud |" in plain
    assert "| tries | 3 |" in plain
    assert "| passed |" in plain
    assert "| none |" in plain
    assert "## Figures" not in plain
    assert plain == card(folder, capsys)

    record = next(record for record in read_rules(folder)[0] if record.id == RULE)
    path = change_path(folder, record)
    write_change(path, [by_two(record)])
    assert "not verified" in card(folder, capsys)
    trust = ["--signers", str(write_signers(folder / "signed" / "signers.toml")), "--root-key", ROOT.public]
    assert "| Ada and Bob |" in card(folder, capsys, *trust)
    write_change(path, [sign(record, ADA, RULE_SET)])
    assert "do not count" in card(folder, capsys, *trust)
    write_change(path, [by_two(record.model_copy(update={"severity": "low"}))])
    assert "of another meaning" in card(folder, capsys, *trust)

    figures = tmp_path / "figures.json"
    figures.write_text('{"card_testing": {"alerts": 12, "precision": 0.8, "a|b": "c"}}')
    shown = card(folder, capsys, "--figures", str(figures))
    assert "| precision | 0.8 |" in shown
    assert "| a\\|b | c |" in shown
    some = ratio(12, 15)
    rule_figures = Figures(
        RULE, 1, "live", 15, 1.25, 9, 12, 3, 0, some, some, some, some, some, ratio(0, 0), {"theft": some}, None, 900.0,
        700.0, 0.5, None, 60.0, None, 2, 1.5,
    )  # fmt: skip
    tested = Backtest(
        {"events": 100, "days": 12, "as_of": "2026-03-01"},
        rule_figures,
        (rule_figures,),
        Matches(rule_figures, (rule_figures,)),
        (),
        (),
    )
    write_json(tested.to_json(), figures)
    shown = card(folder, capsys, "--figures", str(figures))
    for row in ("history: days | 12", "alerts per day | 1.25", "precision | 0.8 (0.548 to 0.93; 12 of 15)"):
        assert f"| {row} |" in shown
    assert "None" not in shown
    for wrong in ('{"rules": [], "about": {}}', "[", "[]", '{"alerts": []}', "9" * 5_000):
        figures.write_text(wrong)
        assert main(["rules", "card", RULE, "--rules", str(folder), "--figures", str(figures)]) == 2
