"""Verbs that measure rules on a labelled history: backtest, diff, prune, report, suggest and tune."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.analysis.backtest import time_text
from cep.cli.main import main
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.runners.live_checkpoint import write_progress
from cep.runners.rule_output import RuleOutput
from cep.sinks.files import FileSink
from cep.step.rules import rule_status
from tests.analysis.bench_data import SOURCE, payments
from tests.analysis.test_suggest import BASE, planted
from tests.analysis.test_tune import PATTERNS
from tests.analysis.test_tune import planted as planted_thresholds
from tests.output_of import OutputOf
from tests.rule_files import rule_text
from tests.rulebook.records import new_book, upsert
from tests.rulebook.test_suppression import alert, table

# `cep backtest` on files: the table, the JSON, and unusable labels.


def pays_rule(name: str) -> str:
    return rule_text(name, "../patterns/pays.cep", message="{key}")


def write_folder(folder: Path, *names: str) -> Path:
    """Write rules of the source as files, with labelled events next to them."""
    for part in ("rules", "patterns"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "patterns" / "pays.cep").write_text(SOURCE)
    for name in names:
        (folder / "rules" / f"{name}.toml").write_text(pays_rule(name))
    events, labels = payments(1)
    pq.write_table(events, folder / "events.parquet")
    pq.write_table(labels, folder / "labels.parquet")
    return folder


def measured(verb: str, folder: Path, *more: str, labels: str = "is_fraud") -> int:
    """Run a verb on the rules and the labelled events of a folder."""
    history = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", labels]
    return main([*verb.split(), *history, *more])


def test_a_table_and_a_file(tmp_path: Path, output_of: OutputOf) -> None:
    folder = write_folder(tmp_path, "large", "small_large")
    path = tmp_path / "figures.json"
    printed = output_of(
        measured("backtest", folder, "--json", str(path), "--maturity", "5d", labels=str(folder / "labels.parquet"))
    ).line
    figures = orjson.loads(path.read_bytes())
    assert [each["rule"] for each in figures["rules"]] == ["large", "small_large"]
    precision = figures["together"]["precision"]
    assert f"{precision['value']:.3f} ({precision['low']:.3f}–{precision['high']:.3f})" in printed
    assert "as sent, which are all matches: rule alerts a day precision of cases of keys" in printed
    rows = ("large", "small_large", "all rules")
    assert all(
        f" {name} {each['alerts']} {each['alerts_per_day']:.1f} " in printed
        for name, each in zip(rows, (*figures["rules"], figures["together"]), strict=True)
    )
    assert figures["all_matches"]["rules"] == figures["rules"]
    assert figures["about"]["maturity_seconds"] == 5 * 86_400


def test_a_pattern_file_needs_no_folder_of_rules(tmp_path: Path, output_of: OutputOf) -> None:
    folder = write_folder(tmp_path)
    file = folder / "patterns" / "pays.cep"
    terms = ["--events", str(folder / "events.parquet"), "--labels", str(folder / "labels.parquet")]
    rows = output_of(main(["backtest", str(file), *terms])).out.split("\nrule ")[1].splitlines()[1:6]
    assert [row.split()[0] for row in rows] == ["busy_shop", "large", "never", "small_large", "all"]
    assert "name a pattern file (*.cep), or a folder" in output_of(main(["backtest", *terms]), 2).err
    file.write_text(SOURCE.replace("amount > large", "amount > lrge", 1))
    assert "did you mean `large`" in output_of(main(["backtest", str(file), *terms]), 2).err
    file.write_text(SOURCE[: SOURCE.index("pattern")])
    assert "has no pattern" in output_of(main(["backtest", str(file), *terms]), 2).err


def test_a_label_that_is_not_there(tmp_path: Path, output_of: OutputOf) -> None:
    folder = write_folder(tmp_path, "large")
    assert "the events have no column nobody" in output_of(measured("backtest", folder, labels="nobody"), 2).err
    assert measured("backtest", folder, "--as-of", "yesterday") == 2
    assert measured("backtest", folder, "--cores", "0") == 2


def test_times_have_the_unit_that_suits() -> None:
    assert [time_text(seconds) for seconds in (None, 45, 750, 11_520, -700_000)] == [
        "–", "45 s", "12.5 min", "3.2 h", "-8.1 d",
    ]  # fmt: skip


def test_what_is_sent_comes_before_all_matches(tmp_path: Path, output_of: OutputOf) -> None:
    folder = write_folder(tmp_path, "large", "small_large")
    rule = folder / "rules" / "large.toml"
    rule.write_text(rule.read_text() + 'suppress = "5 d"\n')
    shadow = folder / "rules" / "small_large.toml"
    shadow.write_text(shadow.read_text().replace('"live"', '"shadow"'))
    printed = output_of(measured("backtest", folder, "--json", str(tmp_path / "figures.json"))).out
    figures = orjson.loads((tmp_path / "figures.json").read_bytes())
    reasons = figures["about"]["matches_not_sent"]
    assert list(reasons) == ["shadow", "suppressed"]
    assert f"as sent ({reasons['shadow']:,} shadow, {reasons['suppressed']:,} suppressed are not):" in printed
    assert 0 < printed.index("as sent") < printed.index("all matches:")
    sent, matches = figures["together"], figures["all_matches"]["together"]
    assert matches["alerts"] - sent["alerts"] == sum(reasons.values())
    assert {each["rule"]: each["alerts"] for each in figures["rules"]}["small_large"] == 0


def test_episodes_are_chosen_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path, "large")
    counts = []
    for more in ((), ("--episodes", "card_id:1d"), ("--episodes", "shop:1h"), ("--episodes", "0s")):
        assert measured("backtest", folder, "--json", str(tmp_path / "figures.json"), *more) == 0
        counts.append(orjson.loads((tmp_path / "figures.json").read_bytes())["about"]["frauds"])
    assert counts[0] == counts[1] < counts[2] < counts[3]
    capsys.readouterr()
    assert measured("backtest", folder, "--episodes", "nobody:1d") == 2
    assert "--episodes nobody: the rules' events have these fields" in capsys.readouterr().err
    assert measured("backtest", folder, "--episodes", "often") == 2


# Two sets of rules over one history, and a version in shadow next to the live one.

ROOT = Path(__file__).parents[2]


def payment(number: int, second: int, amount: float, bad: int) -> str:
    fields = {
        "tx_id": f"t{number}", "event_time": f"2026-03-01T10:00:{second:02}Z", "card_id": "c1", "account_id": "a1",
        "amount": amount, "status": "approved", "channel": "ecom", "country": "FR", "is_fraud": bad,
    }  # fmt: skip
    return json.dumps(fields)


@pytest.fixture
def two_sets(tmp_path: Path) -> Path:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        shutil.copytree(ROOT / "patterns", tmp_path / name / "patterns")
        (tmp_path / name / "rules").mkdir()
        shutil.copy(ROOT / "rules" / "small_then_large.toml", tmp_path / name / "rules")
    lines = [payment(1, 0, 0.50, 0), payment(2, 30, 640.00, 1), payment(3, 40, 0.50, 0), payment(4, 50, 560.00, 0)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def diff(two_sets: Path, *more: str) -> int:
    rules = [str(two_sets / name / "rules") for name in ("old", "new")]
    return main(["diff", *rules, "--events", str(two_sets / "events.jsonl"), *more])


def test_a_stricter_rule_loses_an_alert_and_is_more_precise(two_sets: Path, output_of: OutputOf) -> None:
    assert "kept 2, gained 0, lost 0" in output_of(diff(two_sets)).out
    path = two_sets / "new" / "rules" / "small_then_large.toml"
    path.write_text(path.read_text().replace("large = 500.00", "large = 600.00"))
    printed = output_of(diff(two_sets, "--label", "is_fraud"), 1).line
    assert "kept 1, gained 0, lost 1" in printed
    assert "lost 1 of small_then_large" in printed
    assert "[t3, t4]" in printed
    assert "precision 0.500 1.000" in printed
    assert "recall 1.000 1.000" in printed


def test_a_diff_has_what_is_sent_before_all_matches(two_sets: Path, output_of: OutputOf) -> None:
    path = two_sets / "new" / "rules" / "small_then_large.toml"
    path.write_text(path.read_text().replace("priority = 20", 'priority = 20\nsuppress = "1 d"'))
    printed = output_of(diff(two_sets, "--label", "is_fraud")).line
    assert "alerts sent 2 1 precision 0.500 1.000 recall 1.000 1.000 all matches 2 2 precision 0.500 0.500" in printed


def test_each_rule_has_its_sent_alerts_before_its_matches(two_sets: Path, output_of: OutputOf) -> None:
    path = two_sets / "new" / "rules" / "small_then_large.toml"
    text = path.read_text()
    (path.parent / "other.toml").write_text(text.replace('id = "small_then_large"', 'id = "other"'))
    path.write_text(text.replace("priority = 20", 'priority = 20\nsuppress = "1 d"'))
    sent, matches = output_of(diff(two_sets, "--label", "is_fraud"), 1).line.split("all matches")
    assert "other – 2 precision – 0.500 recall – 1.000 small_then_large 2 1 precision 0.500 1.000" in sent
    assert "other – 2 precision – 0.500 recall – 1.000 small_then_large 2 2 precision 0.500 0.500" in matches


def test_a_label_that_is_not_there_is_told(two_sets: Path, output_of: OutputOf) -> None:
    assert "--cores is 1 or more" in output_of(diff(two_sets, "--cores", "0"), 2).err
    assert "have no column nobody" in output_of(diff(two_sets, "--label", "nobody"), 2).err


def test_a_shadow_is_compared_with_the_live_version(tmp_path: Path, output_of: OutputOf) -> None:
    book = new_book(upsert(1, "a"), upsert(2, "a", status="shadow", effective_ms=2_000))
    output = RuleOutput(tmp_path, rule_status(book))
    alerts = table(
        alert(1, 1_000), alert(2, 3_000), alert(3, 4_000), alert(4, 3_000, version=2, status="shadow"),
        alert(5, 5_000, version=2, status="shadow"),
    )  # fmt: skip
    sent, _ = output.take(alerts, orjson.dumps(rule_status(book)), 0)
    assert sent.equals(suppress_alerts(alerts, Policies(), {}).alerts)
    FileSink(tmp_path / "alerts").write(sent, 0)
    costs = {"rule_events[a@1]": 1_000, "rule_steps[a@1]": 250, "rule_events[a@2]": 800, "rule_steps[a@2]": 1_600}
    write_progress(tmp_path, 0, costs)
    report = ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(tmp_path / "alerts")]
    printed = output_of(main(report)).line
    assert "a: shadow version 2 2 alerts, live 2" in printed
    assert "kept 1, gained 1, lost 1" in printed
    assert "1 1,000 250 0.250 2 800 1,600 2.000" in printed
    assert main([*report[:3], "b", *report[4:]]) == 2


# `cep rules prune` on files: the rules that could go, and the frauds that each of them adds.


def test_rules_that_could_go(tmp_path: Path, output_of: OutputOf) -> None:
    folder = write_folder(tmp_path, "large", "small_large", "never")
    path = tmp_path / "pruned.json"
    printed = output_of(measured("rules prune", folder, "--json", str(path)), 1).out
    pruned = orjson.loads(path.read_bytes())
    assert pruned["frauds_after"] == pruned["frauds_before"] > 0
    removed = {each["rule"]: each for each in pruned["removed"]}
    assert removed["never"]["adds"] == 0
    assert f"{len(pruned['stay'])} of 3 rules find {pruned['frauds_after']}" in printed
    assert "they stay: large" in output_of(measured("rules prune", folder, "--tolerance", "0.05"), 1).out
    assert measured("rules prune", folder, "--tolerance", "2") == 2
    assert measured("rules prune", folder, "--budget", "often") == 2
    output_of.read()
    assert measured("rules prune", folder, "--budget", "0.1/day", "--json", str(path)) == 1
    few = orjson.loads(path.read_bytes())
    assert few["alerts_after"] <= 2, "twenty days"
    assert few["frauds_after"] < few["frauds_before"]


# `cep report` on files: the page, its numbers, and its errors.


def report(folder: Path, out: Path, *more: str) -> int:
    return measured("report", folder, "--out", str(out), *more)


def test_a_page_and_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "new", "large", "small_large")
    old = write_folder(tmp_path / "old", "large")
    out = tmp_path / "report.html"
    assert report(folder, out, "--against", str(old / "rules")) == 0
    assert capsys.readouterr().out.split() == ["wrote", str(out), "wrote", str(out.with_suffix(".json"))]
    numbers = orjson.loads(out.with_suffix(".json").read_bytes())
    assert [each["rule"] for each in numbers["against"]["rules"]] == ["large"]
    assert "<h2>4. Beside the other rules</h2>" in out.read_text()


def test_thresholds_of_a_rule(tmp_path: Path, output_of: OutputOf) -> None:
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
    output_of.read()
    assert "has no rule nobody" in output_of(report(folder, out, "--thresholds", "nobody"), 2).err


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
    monkeypatch.setattr("cep.analysis.one_rule.REPORT_REPLAYED_EVENTS_MAX", 10)
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


def test_what_is_refused_before_the_work(tmp_path: Path, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, "large")
    assert "name it *.html" in output_of(report(folder, tmp_path / "report.pdf"), 2).err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert "pip install 'cep[charts]'" in output_of(report(folder, tmp_path / "report.html"), 2).err


# `cep rules suggest` on files: a pattern file whose tests pass, and its errors.


def suggest(folder: Path, *more: str, key: str = "card_id") -> int:
    return measured("rules suggest", folder, "--key", key, *more)


OTHER = "event other { other_id id  event_time time  card_id string  note string  sum decimal(2) }\npattern any"


def test_a_pattern_file_that_stands_its_tests(tmp_path: Path, output_of: OutputOf) -> None:
    """The rules' file has one more event type, which does not occur in the history."""
    for part in ("rules", "patterns", "new"):
        (tmp_path / part).mkdir()
    (tmp_path / "patterns" / "pays.cep").write_text(BASE.replace("pattern any", OTHER))
    (tmp_path / "rules" / "any.toml").write_text(pays_rule("any"))
    table = planted(4, frauds=40, count=1_500)
    table = table.append_column("event_type", pa.array(["pay"] * table.num_rows))
    pq.write_table(table, tmp_path / "events.parquet")
    out = tmp_path / "new" / "suggested.cep"
    assert "not yet found" in output_of(suggest(tmp_path, "--out", str(out), "--max-steps", "2")).out
    assert main(["test", str(out)]) == 0
    assert main(["check", str(out.parent)]) == 0
    rules = [tomllib.loads(path.read_text()) for path in out.parent.glob("*.toml")]
    assert rules
    assert {rule["status"] for rule in rules} == {"shadow"}
    assert "--key nobody is no field" in output_of(suggest(tmp_path, key="nobody"), 2).err
    assert suggest(tmp_path, "--max-steps", "9") == 2


def bench(folder: Path, pattern: str = "", **columns: pa.Array) -> None:
    """Write an event declaration and labelled events of 40 frauds, with other columns if given."""
    table = planted(4, frauds=40, count=1_500)
    for name, values in columns.items():
        index = table.column_names.index(name) if name in table.column_names else table.num_columns
        table = table.remove_column(index) if index < table.num_columns else table
        table = table.add_column(index, name, values)
    pq.write_table(table, folder / "events.parquet")
    kinds = {"int64": "int", "bool": "bool", "double": "float", "string": "string"}
    fields = "".join(
        f"  {name} {kinds[str(values.type)]}\n" for name, values in columns.items() if f"  {name} " not in BASE
    )
    base = BASE[: BASE.index("pattern")].replace("  country", f"{fields}  country")
    if "card_id" in columns:
        base = base.replace("card_id     string", f"card_id     {kinds[str(columns['card_id'].type)]}")
    (folder / "pays.cep").write_text(base + pattern)


def mined(folder: Path, *more: str) -> int:
    command = [str(folder / "pays.cep"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["rules", "suggest", *command, "--key", "card_id", "--max-steps", "2", *more])


def test_a_key_of_whole_numbers_and_event_types_without_a_pattern(tmp_path: Path, output_of: OutputOf) -> None:
    table = planted(4, frauds=40, count=1_500)
    bench(tmp_path, card_id=pa.array([int(card[1:]) for card in table["card_id"].to_pylist()]))
    out = tmp_path / "found.cep"
    printed = output_of(mined(tmp_path, "--out", str(out))).out
    assert "events of 150 card_id with " in printed
    assert "fields: amount, status, channel, country" in printed
    assert "  1: 0 s  pay " in out.read_text()
    assert main(["test", str(out)]) == 0
    before = out.read_bytes()
    assert "is there already" in output_of(mined(tmp_path, "--out", str(out)), 2).err
    assert out.read_bytes() == before
    first = sorted(path.name for path in tmp_path.glob("*.toml"))
    assert mined(tmp_path, "--out", str(tmp_path / "more.cep")) == 0
    assert first == ["suggested_1.toml", "suggested_2.toml"][: len(first)]
    assert len(list(tmp_path.glob("*.toml"))) == 2 * len(first)
    assert f"pattern suggested_{len(first) + 1}" in (tmp_path / "more.cep").read_text()


def test_no_suggestion_reads_the_label_or_a_trait_of_a_person(tmp_path: Path, output_of: OutputOf) -> None:
    table = planted(4, frauds=40, count=1_500)
    frauds = table["is_fraud"].combine_chunks()
    gender = pa.array(["x" if fraud else "y" for fraud in frauds.to_pylist()])
    lat = pa.array([float(number % 90) for number in range(table.num_rows)])
    bench(tmp_path, is_fraud=frauds, gender=gender, home_lat=lat)
    printed = output_of(mined(tmp_path, "--exclude", "country")).out
    assert (
        "left out: is_fraud (the column of the labels), gender (a personal trait), home_lat (a coordinate), "
        "country (excluded)" in printed
    )
    patterns = printed[printed.index("pattern ") :]
    assert not any(name in patterns for name in ("is_fraud", "gender", "home_lat", "country"))
    captured = output_of(mined(tmp_path, "--use", "gender"))
    assert "gender == " in captured.out[captured.out.index("pattern ") :]
    assert 'warning: `gender == "x"` alone separates nearly all frauds' in captured.err
    assert mined(tmp_path, "--exclude", "nothing") == 2


def test_the_best_rejected_sequences_are_shown_with_the_reason(tmp_path: Path, output_of: OutputOf) -> None:
    table = planted(4, frauds=40, count=1_500)
    labels = table["is_fraud"].to_pylist()
    bench(tmp_path, is_fraud=pa.array(labels[7:] + labels[:7]))
    printed = output_of(mined(tmp_path), 1).out
    assert "0 have a precision of 0.8 or more" in printed
    assert "not proposed: " in printed
    assert "pattern suggested_1" in printed


# `cep rules tune` on files: its output, its proposal, and that it writes only on request.


@pytest.fixture
def thresholds(tmp_path: Path) -> Path:
    for part in ("rules", "patterns"):
        (tmp_path / part).mkdir()
    (tmp_path / "patterns" / "pays.cep").write_text(PATTERNS)
    (tmp_path / "rules" / "planted.toml").write_text(pays_rule("planted") + "\n[params]\nlarge = 100.0 # of 2025\n")
    pq.write_table(planted_thresholds(1), tmp_path / "events.parquet")
    return tmp_path


def tune(folder: Path, *more: str, rule: str = "planted") -> int:
    return measured(f"rules tune {rule}", folder, *more)


def test_a_change_is_proposed_and_written_if_asked(thresholds: Path, output_of: OutputOf) -> None:
    path, before = thresholds / "rules" / "planted.toml", (thresholds / "rules" / "planted.toml").read_text()
    ranges = ("--try", "large=50..900/18", "--try", "least=1..6/6")
    printed = output_of(tune(thresholds, *ranges, "--json", str(thresholds / "tuned.json"))).out
    assert "108 settings compared, all of them exactly" in printed
    assert "…" not in printed, "a narrow terminal gets long lines, not cut figures"
    assert "-large = 100.0 # of 2025\n+least = 3\n+large = 450.0 # of 2025" in printed
    assert path.read_text() == before
    tuned = orjson.loads((thresholds / "tuned.json").read_bytes())
    assert (tuned["outcome"], len(tuned["tried"]["large"])) == ("better", tuned["settings_count"])
    assert tuned["difference"]["low"] > 0
    assert tuned["proposed"] == {"large": 450.0, "least": 3}
    assert "cep rules bump planted" in output_of(tune(thresholds, *ranges, "--write")).out
    assert path.read_text() == before.replace("large = 100.0 #", "least = 3\nlarge = 450.0 #")
    printed = output_of(tune(thresholds, *ranges)).out
    assert "the present setting is the best one" in printed
    assert "known at its end" in printed
    assert "least was not tried: --try names others" in output_of(tune(thresholds, "--try", "large=450..900/7")).out


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--budget", "many"), "like 50/day"),
        (("--try", "large"), "like large=100,200,500"),
        (("--try", "large=inf"), "finite"),
        (("--try", f"large=1..{'9' * 400}"), "a range like"),
        (("--try", "large=1", "--try", "large=2"), "given twice"),
        (("--gap", "long"), "--gap"),
        (("--budget", "0/day"), "no setting keeps to the budget"),
    ],
)
def test_what_is_refused(thresholds: Path, output_of: OutputOf, more: tuple[str, ...], reason: str) -> None:
    assert reason in output_of(tune(thresholds, *more), 2).err
    assert tune(thresholds, rule="nobody") == 2
