"""`cep report` on files: the page, its numbers, and its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from cep.cli.main import main
from tests.cli.test_backtest import write_folder


def report(folder: Path, out: Path, *more: str) -> int:
    command = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["report", *command, "--out", str(out), *more])


def test_a_page_and_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "new", "large", "small_large")
    old = write_folder(tmp_path / "old", "large")
    out = tmp_path / "report.html"
    assert report(folder, out, "--against", str(old / "rules")) == 0
    assert capsys.readouterr().out.split() == ["wrote", str(out), "wrote", str(out.with_suffix(".json"))]
    numbers = orjson.loads(out.with_suffix(".json").read_bytes())
    assert [each["rule"] for each in numbers["against"]["rules"]] == ["large"]
    assert "<h2>4. Beside the other rules</h2>" in out.read_text()


def test_thresholds_of_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The point of the present value has the figures of the rule, although the report also has other rules."""
    folder = write_folder(tmp_path, "large", "small_large")
    out = tmp_path / "report.html"
    assert report(folder, out, "--thresholds", "large") == 0
    numbers = orjson.loads(out.with_suffix(".json").read_bytes())
    (curve,) = numbers["thresholds"]
    (near,) = numbers["near_thresholds"]
    inside = sum(
        each[name] for each in near["intervals"] if each["is_inside"] for name in ("right", "wrong", "immature")
    )
    assert inside + near["further"] == next(each["alerts"] for each in numbers["rules"] if each["rule"] == "large")
    assert "Just above and just below the line" in out.read_text()
    assert (curve["rule"], curve["param"], curve["present"], curve["left_out"]) == ("large", "large", 450.0, [])
    assert [point["value"] for point in (curve["points"][0], curve["points"][-1])] == [112.5, 1800.0]
    of_rule = next(each for each in numbers["rules"] if each["rule"] == "large")
    now = next(point for point in curve["points"] if point["value"] == 450.0)
    assert now.pop("value") == 450.0
    assert now.pop("money_found") == pytest.approx(of_rule["money_found"])
    assert now == {name: of_rule[name] for name in now}
    shown = out.read_text()
    assert "<h2>5. Thresholds</h2>" in shown
    assert "450 (present)" in shown
    capsys.readouterr()
    assert report(folder, out, "--thresholds", "nobody") == 2
    assert "has no rule nobody" in capsys.readouterr().err


def curves_of(out: Path) -> list[str]:
    return [each["rule"] for each in orjson.loads(out.with_suffix(".json").read_bytes())["thresholds"]]


def test_thresholds_of_several_rules_of_one_or_of_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the flag it is the rule with the most alerts that has numeric parameters."""
    folder, out = write_folder(tmp_path, "large", "small_large", "never"), tmp_path / "report.html"
    assert report(folder, out, "--thresholds", "small_large", "--thresholds", "large") == 0
    assert curves_of(out) == ["small_large", "large"]
    assert report(folder, out) == 0
    most = max(orjson.loads(out.with_suffix(".json").read_bytes())["rules"], key=lambda each: each["alerts"])["rule"]
    assert curves_of(out) == [most] == ["large"]
    assert "No rule was named, so this is the one with the most alerts that has numbers: large." in out.read_text()
    assert report(folder, out, "--thresholds", "none") == 0
    assert curves_of(out) == []
    assert "Thresholds" not in out.read_text()
    capsys.readouterr()
    assert report(folder, out, "--thresholds", "none", "--thresholds", "large") == 2
    assert "--thresholds none draws nothing" in capsys.readouterr().err
    monkeypatch.setattr("cep.analysis.thresholds.REPORT_REPLAYED_EVENTS_MAX", 10)
    assert report(folder, out) == 0
    assert curves_of(out) == []
    assert "Nothing was replayed, for the history has more than 10 events." in out.read_text()


def test_a_rule_without_numbers_is_passed_over_but_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write_folder(tmp_path, "never"), tmp_path / "report.html"
    assert report(folder, out) == 0
    assert "No rule has a parameter that is a number" in out.read_text()
    capsys.readouterr()
    assert report(folder, out, "--thresholds", "never") == 2
    assert "never has no parameter that is a number above 0" in capsys.readouterr().err


def test_the_other_rules_are_named_with_their_hashes(tmp_path: Path) -> None:
    folder, out = write_folder(tmp_path / "new", "large"), tmp_path / "report.html"
    old = write_folder(tmp_path / "old", "large", "small_large")
    (old / "rules" / "large.toml").write_text((old / "rules" / "large.toml").read_text() + "[params]\nlarge = 400.0\n")
    assert report(folder, out, "--against", str(old / "rules"), "--thresholds", "large") == 0
    numbers, page = orjson.loads(out.with_suffix(".json").read_bytes()), out.read_text()
    matched = page[page.index('<section id="matched">') : page.index('<section id="days">')]
    hashes = [
        each["content_hash"][:12]
        for numbers_of_rules in (numbers, numbers["against"])
        for each in numbers_of_rules["about"]["rules"]
    ]
    assert len({*hashes}) == 3
    assert all(each in matched for each in hashes)
    assert "<h3>The other rules</h3>" in matched


def test_what_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path, "large")
    assert report(folder, tmp_path / "report.pdf") == 2
    assert "name it *.html" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert report(folder, tmp_path / "report.html") == 2
    assert "pip install 'cep[charts]'" in capsys.readouterr().err
