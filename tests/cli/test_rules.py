"""`cep rules`: the folder, its audit, the card of a rule, committed links, and versions in shadow."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from cep.analysis.backtest import Backtest, Figures, Matches, ratio
from cep.base.audit import Head, add_line, is_audit
from cep.base.errors import LinkedPathError
from cep.base.exits import Exit
from cep.base.files import replace_file, repository_root
from cep.cli.labelled import write_json
from cep.cli.main import main
from cep.rulebook.files import change_path, read_rules, write_change
from cep.rulebook.trust import sign, with_nonce
from cep.runners.rule_output import STATUS_FILE, SUPPRESSED_FOLDER
from cep.sources.kafka import KafkaSettings, earliest_offsets, latest_offsets, read_range
from cep.sources.offsets import OffsetRange
from cep.state.manifest import KEY
from tests.mock_kafka import MockKafka
from tests.output_of import OutputOf
from tests.real_kafka import KafkaCluster
from tests.rule_files import copy_rules, rule_text
from tests.rulebook.people import ADA, RULE_SET, by_two, write_signers
from tests.rulebook.people import ROOT as ROOT_KEY
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_signed import PAUSE, SNOOZE, Plain
from tests.runners.spark.live_cases import rules

# `cep rules`: the folder of this repository, and changed copies of it.

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_rules(tmp_path)


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_rules_of_this_repository_are_locked(output_of: OutputOf) -> None:
    assert main(["rules", "list", "--rules", str(ROOT / "rules")]) == 0
    assert "card_testing 1 live high card-fraud" in output_of.read().line


def test_a_change_wants_a_version(folder: Path, output_of: OutputOf) -> None:
    options = ["--rules", str(folder)]
    changed(folder / "card_testing.toml", "tries = 3", "tries = 4")
    assert "run `cep rules bump card_testing`" in output_of(main(["rules", "list", *options]), 1).line
    assert main(["rules", "lock", *options]) == 1
    assert "version 1 → 2, locked" in output_of(main(["rules", "bump", "card_testing", *options])).line
    assert main(["rules", "list", *options]) == 0
    assert "version = 2" in (folder / "card_testing.toml").read_text()
    assert main(["rules", "bump", "card_testing", "--above", "7", *options]) == 0
    path = folder / "card_testing.toml"
    assert "version = 8" in path.read_text()
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = path.read_bytes()
    assert main(["rules", "bump", "card_testing", *options]) == 0
    assert path.read_bytes() == before.replace(b"version = 8", b"version = 9")


def test_layout_and_comments_want_none(folder: Path) -> None:
    pattern = folder.parent / "patterns" / "cards.cep"
    pattern.write_text("# reviewed\n" + pattern.read_text().replace("\n  seq ", "\n\n  # what it looks for\n  seq   "))
    changed(folder / "card_testing.toml", "tries = 3", "tries   =   3 # few")
    assert main(["rules", "list", "--rules", str(folder)]) == 0


def test_a_rule_is_shown_with_its_text(output_of: OutputOf) -> None:
    printed = output_of(main(["rules", "show", "card_testing", "--rules", str(ROOT / "rules")])).line
    assert "params.window 10 min" in printed
    assert "pattern card_testing(" in printed


def test_what_is_wrong_is_told(folder: Path, output_of: OutputOf) -> None:
    options = ["--rules", str(folder)]
    changed(folder / "card_testing.toml", "status =", "state =")
    changed(folder / "rising_amounts.toml", 'pattern = "rising_amounts"', 'pattern = "rising_amount"')
    printed = output_of(main(["rules", "list", *options]), 1).line
    assert "card_testing.toml" in printed
    assert "did you mean `rising_amounts`" in printed
    assert main(["rules", "show", "card_testing", *options]) == 2
    assert main(["rules", "show", "nobody", *options]) == 2


def test_the_schemas_are_printed(output_of: OutputOf) -> None:
    schema = json.loads(output_of(main(["rules", "schema"])).out)
    kinds = set(schema["discriminator"]["mapping"])
    assert kinds == {"upsert", "retire", "rollback", "pause", "resume", "snooze", "list", "heartbeat"}
    assert "approved_by" in json.loads(output_of(main(["rules", "schema", "--files"])).out)["properties"]


def test_a_list_says_which_parameter_is_wrong(folder: Path, output_of: OutputOf) -> None:
    changed(folder / "card_testing.toml", 'window = "10 min"', "window = 600")
    assert main(["rules", "list", "--rules", str(folder)]) == 1
    assert "CEP503 the parameter `window` is of type duration, 600 does not fit" in output_of.read().line


# `cep rules audit verify` against attackers who can write into the folder of a job: it finds a cut or new trail.

SECRET = "0123456789abcdef"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a job with a key, and an audit of some lines."""
    monkeypatch.setenv(KEY, SECRET)
    job = Plain(tmp_path)
    job.send("1.jsonl", with_nonce(SNOOZE), with_nonce(PAUSE))
    assert job.run("job", *job.control) == 0
    return tmp_path / "job"


def verify(job: Path, output_of: OutputOf) -> tuple[int, str]:
    output_of.read()
    code = main(["rules", "audit", "verify", str(job / "dead_letters")])
    return code, output_of.read().out


def trail_file(job: Path) -> Path:
    (path,) = (path for path in (job / "dead_letters").glob("*.jsonl") if b'"code":"audit"' in path.read_bytes())
    return path


def made_up(count: int) -> tuple[Head, bytes]:
    """Return a whole chain of other lines, and its head."""
    head, lines = Head(), []
    for _ in range(count):
        head, line = add_line(head, {"what": "first", "signers_version": None}, {"why": "nothing happened"}, "salt")
        lines.append(line + b"\n")
    return head, b"".join(lines)


def test_a_trail_that_was_cut_or_written_again_is_found(job: Path, output_of: OutputOf) -> None:
    code, printed = verify(job, output_of)
    assert code == 0, printed
    path, status = trail_file(job), job / STATUS_FILE
    whole, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    code, printed = verify(job, output_of)
    assert (code, "the end is missing" in printed, "checkpoint" in printed) == (Exit.FINDINGS, True, True)

    # The attacker also writes a whole trail and its head, but lacks the key.
    head, path_bytes = made_up(len(lines))
    path.write_bytes(path_bytes)
    job_status = orjson.loads(status.read_bytes())
    status.write_text(json.dumps({**job_status, "audit": {**job_status["audit"], **head.to_json()}}))
    code, printed = verify(job, output_of)
    assert (code, "is not signed with" in printed) == (Exit.FINDINGS, True)
    status.unlink()
    code, printed = verify(job, output_of)
    assert (code, "which checkpoint" in printed) == (Exit.FINDINGS, True)
    for checkpoint in (job / "checkpoints").glob("*.manifest"):
        checkpoint.unlink()
    code, printed = verify(job, output_of)
    assert (code, "no signed head was found" in printed) == (Exit.FINDINGS, True)

    status.write_text(json.dumps(job_status))
    path.write_bytes(whole)
    code, printed = verify(job, output_of)
    assert code == 0, printed


def test_a_head_counts_without_a_key_and_verify_says_so(
    job: Path, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(KEY)
    code, printed = verify(job, output_of)
    assert (code, "CEP_MANIFEST_KEY is not set" in printed) == (0, True)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(trail_file(job).read_bytes().splitlines(keepends=True)[:-1]))
    assert "lines missing at the end are not noticed" in output_of(main(["rules", "audit", "verify", str(copy)])).out
    assert main(["rules", "audit", "verify", str(copy), "--checkpoint", str(job)]) == Exit.FINDINGS


# The card of a rule.


CARD_RULE = "card_testing"


def card(folder: Path, output_of: OutputOf, *flags: str) -> str:
    output_of.read()
    return output_of(main(["rules", "card", CARD_RULE, "--rules", str(folder), *flags])).out


def test_a_card_has_what_there_is(folder: Path, tmp_path: Path, output_of: OutputOf) -> None:
    plain = card(folder, output_of)
    assert plain.startswith("# card_testing\n\nSeveral small declines")
    assert "| owner | card-fraud |" in plain
    assert "| tries | 3 |" in plain
    assert "| passed |" in plain
    assert "| none |" in plain
    assert "## Figures" not in plain
    assert plain == card(folder, output_of)

    record = next(record for record in read_rules(folder)[0] if record.id == CARD_RULE)
    path = change_path(folder, record)
    write_change(path, [by_two(record)])
    assert "not verified" in card(folder, output_of)
    trust = ["--signers", str(write_signers(folder / "signed" / "signers.toml")), "--root-key", ROOT_KEY.public]
    assert "| Ada and Bob |" in card(folder, output_of, *trust)
    write_change(path, [sign(record, ADA, RULE_SET)])
    assert "do not count" in card(folder, output_of, *trust)
    write_change(path, [by_two(record.model_copy(update={"severity": "low"}))])
    assert "of another meaning" in card(folder, output_of, *trust)

    figures = tmp_path / "figures.json"
    figures.write_text('{"card_testing": {"alerts": 12, "precision": 0.8, "a|b": "c"}}')
    shown = card(folder, output_of, "--figures", str(figures))
    assert "| precision | 0.8 |" in shown
    assert "| a\\|b | c |" in shown
    some = ratio(12, 15)
    rule_figures = Figures(
        CARD_RULE, 1, "live", 15, 1.25, 9, 12, 3, 0, some, some, some, some, some, ratio(0, 0), {"theft": some}, None,
        900.0, 700.0, 0.5, None, 60.0, None, 2, 1.5,
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
    shown = card(folder, output_of, "--figures", str(figures))
    for row in ("history: days | 12", "alerts per day | 1.25", "precision | 0.8 (0.548 to 0.93; 12 of 15)"):
        assert f"| {row} |" in shown
    assert "None" not in shown
    for wrong in ('{"rules": [], "about": {}}', "[", "[]", '{"alerts": []}', "9" * 5_000):
        figures.write_text(wrong)
        assert main(["rules", "card", CARD_RULE, "--rules", str(folder), "--figures", str(figures)]) == 2


# No verb writes through a link: a rules repository may contain links that an attacker has committed.

PATTERN = """event tx { id id  event_time time  card string }
pattern p by card { seq a -> b within 1 h
where a: tx b: tx }
"""
RULE = rule_text(file="../patterns/p.cep")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Return a repository of rules, and a file of the user outside it."""
    for name in ("repo/.git", "repo/patterns", "repo/rules/signed"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "repo/patterns/p.cep").write_text(PATTERN)
    (tmp_path / "repo/rules/p.toml").write_text(RULE)
    (tmp_path / "profile").write_text("original\n")
    return tmp_path / "repo"


def in_repository(repo: Path, words: str) -> int:
    return main([str(repo / word[2:]) if word.startswith("./") else word for word in words.split()])


LOCK = "rules lock --rules ./rules"
# Each verb with the file that it writes, by their names in the repository.
VERBS = [
    ("fmt ./patterns", "patterns/p.cep"),
    (LOCK, "rules/rules.lock"),
    ("rules bump p --rules ./rules", "rules/p.toml"),
]


@pytest.mark.parametrize(("verb", "name"), VERBS)
def test_a_committed_link_under_a_temporary_name_is_not_followed(
    repo: Path, tmp_path: Path, verb: str, name: str
) -> None:
    in_repository(repo, LOCK) if "bump" in verb else None
    target = repo / name
    for temporary in (f".{target.name}.new", f".{target.name}.tmp"):
        (target.parent / temporary).symlink_to(tmp_path / "profile")
    assert in_repository(repo, verb) in (0, 1)
    assert (tmp_path / "profile").read_text() == "original\n"
    assert target.is_file()
    assert not target.is_symlink()


@pytest.mark.parametrize(("verb", "name"), VERBS)
def test_a_file_that_is_a_link_is_not_written(repo: Path, tmp_path: Path, verb: str, name: str) -> None:
    in_repository(repo, LOCK) if "bump" in verb else None
    target, outside = repo / name, tmp_path / "outside"
    if target.exists():
        target.rename(outside)
    else:
        outside.write_text("")
    target.symlink_to(outside)
    before = outside.read_bytes()
    in_repository(repo, verb)
    assert outside.read_bytes() == before
    assert target.is_symlink()


def test_a_linked_parent_below_the_root_is_refused(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repo / "patterns" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkedPathError, match="sub is a link"):
        replace_file(repo / "patterns/sub/a.cep", b"x", root=repo)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert repository_root(repo / "patterns") == repo


def test_a_folder_exchanged_for_a_link_while_the_file_is_written(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()

    def exchange(file: object) -> None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(elsewhere)

    replace_file(folder / "a", exchange, root=tmp_path)
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["a"]


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.cep"
    path.write_text("x")
    path.chmod(0o640)
    replace_file(path, b"y", root=tmp_path)
    assert path.stat().st_mode & 0o777 == 0o640


# `cep rules shadow report` over a job of `cep run` whose only sink is a topic; its dead letters also go to a topic.


RULES = str(ROOT / "rules")
FAILED = 3


def values(address: str, topic: str) -> list[bytes]:
    settings = KafkaSettings(address)
    begins, ends = (ask(settings, [topic])[topic] for ask in (earliest_offsets, latest_offsets))
    ranges = [OffsetRange(topic, partition, begins[partition], end) for partition, end in ends.items()]
    batches = (batch for offsets in ranges if offsets.start < offsets.end for batch in read_range(settings, offsets))
    return [value for batch in batches for value in batch["value"].to_pylist()]


def test_a_job_with_topics_alone(tmp_path: Path, output_of: OutputOf) -> None:
    with MockKafka() as kafka:
        for topic in ("alerts", "dead"):
            kafka.create(topic)
        job = TopicsJob(kafka.address, "alerts", "dead", ("--delivery", "at-least-once"))
        report_of_a_job(job, tmp_path, output_of)


def test_a_job_with_topics_alone_exactly_once(kafka_broker: KafkaCluster, tmp_path: Path, output_of: OutputOf) -> None:
    for topic in ("alerts", "dead"):
        kafka_broker.create(topic, 2)
    delivery = "exactly-once" if kafka_broker.is_real else "at-least-once"  # the mock damages transactions
    report_of_a_job(TopicsJob(kafka_broker.address, "alerts", "dead", ("--delivery", delivery)), tmp_path, output_of)


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_with_topics_alone(kafka_broker: KafkaCluster, tmp_path: Path, output_of: OutputOf) -> None:
    for topic in ("alerts-of-live", "dead-of-live"):
        kafka_broker.create(topic, 2)
    job = TopicsJob(kafka_broker.address, "alerts-of-live", "dead-of-live", verb="live")
    report_of_a_job(job, tmp_path, output_of)


@dataclass
class TopicsJob:
    """A job into topics. A job on Spark has a separate process, because its session would stay in this one."""

    address: str
    alerts: str
    dead: str
    flags: tuple[str, ...] = ()
    verb: str = "run"

    def run(self, *arguments: str) -> int:
        """Run the job over all records; return its exit code."""
        topics = ["--bootstrap-servers", self.address, "--alerts", f"kafka:{self.alerts}"]
        words = [self.verb, "--rules", RULES, *topics, "--dead-letter-topic", self.dead, *self.flags, *arguments]
        if self.verb == "run":
            return main(words)
        command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words]
        process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        print(process.stderr, file=sys.stderr)
        return process.returncode


def report_of_a_job(topics: TopicsJob, folder: Path, output_of: OutputOf) -> None:
    """Run the job twice with a shadow of each rule, read its topics, and compare."""
    (folder / "events").mkdir()
    (folder / "control").mkdir()
    shadows = [rule.model_copy(update={"version": 9, "status": "shadow"}).to_json() for rule in rules().values()]
    (folder / "control" / "1.jsonl").write_bytes(b"\n".join(shadows))
    (folder / "events" / "1.jsonl").write_bytes(b"\n".join([*morning(), b"{", b'{"card_id": 5}']))
    job = folder / "job"
    source = ["--events", str(folder / "events"), "--control", str(folder / "control")]
    for _ in range(2):  # existing alerts are not sent again
        assert topics.run(*source, "--checkpoint", str(job), "--available-now") == 0
    sent = [json.loads(value) for value in values(topics.address, topics.alerts)]
    assert {alert["status"] for alert in sent} == {"live"}
    letters = values(topics.address, topics.dead)
    codes = sorted(json.loads(value)["code"] for value in letters if not is_audit(value))
    assert codes == ["missing_field", "unreadable"]
    assert not (job / "dead_letters").exists()
    count = Counter(alert["rule_id"] for alert in sent)["small_then_large"]
    assert count > 2
    report = ["rules", "shadow", "report", "small_then_large", "--checkpoint", str(job)]
    report += ["--bootstrap-servers", topics.address, "--alerts", f"kafka:{topics.alerts}"]
    output_of.read()
    shown = output_of(main(report)).line
    assert f"small_then_large: shadow version 9 {count} alerts, live {count}" in shown
    assert f"kept {count}, gained 0, lost 0" in shown
    assert "230584300" not in (job / STATUS_FILE).read_text(), "a time that is none is null"
    totals = orjson.loads((job / "progress.json").read_bytes())["totals"]
    assert totals["held[shadow@small_then_large]"] == totals["alerts[small_then_large@1]"] == count
    assert totals.get("alerts[small_then_large@9]", 0) == 0


@pytest.fixture
def report(tmp_path: Path) -> list[str]:
    """Return the words that compare the shadow of a rule in a job without alerts."""
    status = {"rules": [{"rule_id": "a", "version": 2, "status": "shadow", "from_ms": None}]}
    (tmp_path / STATUS_FILE).write_bytes(orjson.dumps(status))
    for name in (SUPPRESSED_FOLDER, "alerts"):
        (tmp_path / name).mkdir()
    return ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(tmp_path / "alerts")]


def test_where_alerts_are_must_be_said(report: list[str], output_of: OutputOf) -> None:
    assert "needs --bootstrap-servers" in output_of(main([*report[:-1], "kafka:alerts"]), 2).err
    assert "there is no folder" in output_of(main([*report[:-1], report[-1] + "nowhere"]), 2).err


@pytest.mark.parametrize(
    "status", [b"", b"[]", b"{}", b'{"rules": 1}', b'{"rules": [1]}', b'{"rules": [{"rule_id": "a"}]}', b"\xff"]
)
def test_a_damaged_status_is_named(status: bytes, report: list[str], tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / STATUS_FILE).write_bytes(status)
    printed = output_of(main(report), FAILED).err
    assert STATUS_FILE in printed
    assert "bug" not in printed


@pytest.mark.parametrize("folder", [SUPPRESSED_FOLDER, "alerts"])
def test_a_pipe_among_alerts_is_named(folder: str, report: list[str], tmp_path: Path, output_of: OutputOf) -> None:
    os.mkfifo(tmp_path / folder / "batch-1.jsonl")
    printed = output_of(main(report), FAILED).err
    assert f"{folder}/batch-1.jsonl" in printed
    (tmp_path / STATUS_FILE).unlink()
    os.mkfifo(tmp_path / STATUS_FILE)
    assert f"{STATUS_FILE} cannot be read (it is no regular file" in output_of(main(report), FAILED).err
    assert "it is no regular file" in printed


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"held": "shadow"}', b'{"held": "shadow", "alert": {}}', b"1", b"{"])
def test_damaged_alerts_are_named(line: bytes, report: list[str], tmp_path: Path, output_of: OutputOf) -> None:
    suppressed, alerts = tmp_path / SUPPRESSED_FOLDER, tmp_path / "alerts"
    (suppressed / "batch-1.jsonl").write_bytes(line)
    printed = output_of(main(report), FAILED).err
    (suppressed / "batch-1.jsonl").unlink()
    (alerts / "batch-1.jsonl").write_bytes(line)
    also_said = output_of(main(report), FAILED).err
    assert SUPPRESSED_FOLDER in printed
    assert str(alerts) in also_said
    assert "bug" not in printed + also_said


GOOD = {
    "rule_id": "a", "key": "c1", "message": "", "detected_at": "2026-03-01T10:00:00Z", "events": [], "version": 2,
    "match_start": "2026-03-01T10:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize("of_shadow", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [("key", 1), ("message", []), ("detected_at", {}), ("events", None), ("events", [1]), ("match_start", "noon")],
)
def test_a_field_of_an_alert_that_is_damaged_is_named(
    field: str, value: object, of_shadow: bool, report: list[str], tmp_path: Path, output_of: OutputOf
) -> None:
    suppressed, alerts = tmp_path / SUPPRESSED_FOLDER, tmp_path / "alerts"
    bad = {**GOOD, field: value}
    for folder, line in (
        (suppressed, {"held": "shadow", "alert": bad if of_shadow else GOOD}),
        (alerts, GOOD if of_shadow else bad),
    ):
        (folder / "batch-1.jsonl").write_bytes(orjson.dumps(line))
    printed = output_of(main(report), FAILED).err
    assert f"{suppressed if of_shadow else alerts} has a line that is no alert" in printed
    assert "noon" in printed if value == "noon" else f"`{field}`" in printed
    assert "bug" not in printed
