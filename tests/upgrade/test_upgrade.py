"""The folders of the last release: this build takes them over and continues with exactly the alerts of the replay.

Jobs of builds before 0.3 go on.

Those builds gave `{2}` and `{2,}` one hash; both texts have a hash of their own now. They saved rulebooks in two
ledgers: this build judges later records as if it had been there. The files earlier_rulebook.*.json are `rulebook_bytes`
of the book of `applied`, as build 830e9635 wrote them.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cep.base.audit import is_audit
from cep.cli.main import main
from cep.lists.store import ListStore
from cep.model.rule import (
    ControlRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
)
from cep.rulebook import meaning
from cep.rulebook.deploy import deploy
from cep.rulebook.erasure import forget_keys
from cep.rulebook.files import read_rules
from cep.rulebook.lock import locked, problems_of_lock
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.trust import Signable, digest_of, version_line
from cep.runners.handover.payload import payload_in
from cep.runners.spark.savepoint import save_for_both
from cep.state.savepoints import load_lists, open_savepoint
from cep.state.target import Target
from cep.step.job import Job
from cep.step.rules import apply_records, rule_status
from tests.rule_files import rule_text
from tests.rulebook.people import TRUST, by_two
from tests.rulebook.records import SCHEMA, SOURCE, new_book, retire, upsert
from tests.rulebook.test_publish import against
from tests.upgrade.make import TIMES, time_of

RELEASES = sorted(Path(__file__).parent.glob("*.tar.xz"))
END = json.dumps({"kind": "heartbeat", "event_time": time_of(2_000)})


@pytest.fixture(params=RELEASES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def lines_of(*paths: Path) -> list[str]:
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    return [line for file in files for line in file.read_text().splitlines()]


def replayed(release: Path, *more: str) -> list[str]:
    """Return the alerts of this build's replay of all readable events that are not late."""
    lines = [line for line in lines_of(release / "events", release / "rest") if line != "{" and '"late' not in line]
    (release / "history.jsonl").write_text("\n".join(lines))
    out = release / "replayed-now.jsonl"
    options = ["--rules", str(release / "rules"), "--events", str(release / "history.jsonl"), "--out", str(out)]
    options.append("--to-the-end")  # the jobs get a heartbeat after the last event
    assert main(["replay", *options, *more]) == 0
    return sorted(lines_of(out))


def go_on(release: Path, checkpoint: Path, *more: str) -> int:
    """Run this build twice over the folder: the rest of the events, then the end of the stream."""
    shutil.copy(release / "rest" / "2.jsonl", release / "events")
    code = 0
    for number in range(2):
        if number:
            (release / "control" / "9.jsonl").write_text(END)
        inputs = [
            "--rules",
            str(release / "rules"),
            "--events",
            str(release / "events"),
            "--control",
            str(release / "control"),
        ]
        out = ["--alerts", str(release / "alerts" / "now"), "--checkpoint", str(checkpoint), "--available-now"]
        code = code or main(["run", *inputs, *TIMES, *out, *more])
    return code


def with_changes(release: Path) -> list[str]:
    return replayed(release, "--control", str(release / "control" / "1.jsonl"))


def check(release: Path, sent: str, expected: list[str]) -> None:
    """Check that the alerts of the release and of this build are all the alerts, each once."""
    before = lines_of(release / "alerts" / sent) if sent else []
    now = lines_of(release / "alerts" / "now")
    assert now, "something is left for this build"
    assert_same([*before, *now], expected)


def assert_same(alerts: list[str], expected: list[str]) -> None:
    """Compare alerts. Events of an old release lack their origins if the release did not record them."""
    all_got, all_wanted = (sorted(map(json.loads, lines), key=itemgetter("alert_id")) for lines in (alerts, expected))
    for alert, other in zip(all_got, all_wanted, strict=False):
        origins, others = alert.pop("origins", ()), other.pop("origins", ())
        other.pop("unconfirmed", None)
        assert [origin for origin in others if origin in origins] == list(origins)
    assert all_got == all_wanted


@pytest.mark.parametrize("name", ["stopped", "memory"])
def test_a_job_that_was_stopped_goes_on(name: str, release: Path) -> None:
    expected = with_changes(release)
    assert go_on(release, release / "jobs" / name, *(("--store", "memory") if name == "memory" else ())) == 0
    check(release, name, expected)
    # The release has written no trail of its changes. A trail begins here.
    trail = release / "jobs" / name / "dead_letters"
    assert [json.loads(line)["what"] for line in lines_of(trail) if is_audit(line.encode())][:1] == ["first"]
    assert main(["rules", "audit", "verify", str(trail)]) == 0


def test_a_job_whose_store_is_lost_goes_on_from_its_checkpoint(release: Path) -> None:
    expected = with_changes(release)
    shutil.rmtree(release / "jobs" / "stopped" / "store")
    assert go_on(release, release / "jobs" / "stopped") == 0
    check(release, "stopped", expected)


def test_a_job_that_was_killed_sends_what_it_owes_and_goes_on(release: Path) -> None:
    expected = with_changes(release)
    assert go_on(release, release / "jobs" / "killed") == 0
    check(release, "", expected)


def test_a_savepoint_is_restored(release: Path) -> None:
    expected = with_changes(release)
    assert (
        main(["job", "restore", "--from", str(release / "savepoint"), "--checkpoint", str(release / "jobs" / "new")])
        == 0
    )
    assert go_on(release, release / "jobs" / "new") == 0
    check(release, "stopped", expected)


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_a_portable_savepoint_of_spark_whose_levels_are_mixed_up_is_refused(
    engine: str, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = release / "jobs" / "new"
    assert main(["job", "restore", "--from", str(release / "spark"), "--checkpoint", str(new), "--engine", engine]) == 4
    output = capsys.readouterr().err
    assert "mixed up the levels" in output
    assert "`cep job savepoint --portable`" in output
    assert not new.exists()


@pytest.mark.spark
def test_the_folder_of_a_job_on_spark_becomes_a_portable_savepoint(spark: SparkSession, release: Path) -> None:
    expected = with_changes(release)
    save_for_both(spark, release / "jobs" / "live", Target(str(release / "saved")))
    assert (
        main(["job", "restore", "--from", str(release / "saved"), "--checkpoint", str(release / "jobs" / "new")]) == 0
    )
    assert go_on(release, release / "jobs" / "new") == 0
    check(release, "live", expected)


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_goes_on_in_its_folder(release: Path) -> None:
    expected = with_changes(release)
    _bring_home(release)
    shutil.copy(release / "rest" / "2.jsonl", release / "events")
    script = "import sys; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for number in range(2):
        if number:
            (release / "control" / "9.jsonl").write_text(END)
        words = [
            "live", "--rules", str(release / "rules"), "--events", str(release / "events"), "--max-files", "1", *TIMES,
            "--control", str(release / "control"), "--available-now", "--checkpoint", str(release / "jobs" / "live"),
            "--alerts", str(release / "alerts" / "now"),
        ]  # fmt: skip
        result = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-2_000:]
    check(release, "live", expected)


def _bring_home(release: Path) -> None:
    """Change the paths in Spark's logs of files to the present folder: Spark knows files by absolute paths."""
    for log in (release / "jobs" / "live" / "query" / "sources").rglob("*"):
        if log.is_file():
            text = log.read_text()
            log.write_text(re.sub(r"file:/+[^\"]*/(events|control)/", f"file://{release}/\\1/", text))


def test_a_folder_becomes_a_savepoint_of_this_build(release: Path) -> None:
    expected = with_changes(release)
    jobs, saved = release / "jobs", str(release / "saved")
    assert main(["job", "savepoint", "--checkpoint", str(jobs / "stopped"), "--to", saved]) == 0
    assert main(["job", "restore", "--from", saved, "--checkpoint", str(jobs / "new")]) == 0
    assert go_on(release, release / "jobs" / "new") == 0
    check(release, "stopped", expected)


def test_ids_of_events_cannot_be_taken_over_and_the_job_says_what_to_do(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = release / "jobs" / "dedup" / "checkpoints"
    before = {path: path.stat().st_size for path in checkpoints.rglob("*")}
    assert go_on(release, release / "jobs" / "dedup", "--dedup", "2 h") == 4
    assert "go on with the build that wrote it, or begin a new job with this one" in capsys.readouterr().err
    assert lines_of(release / "alerts" / "now") == []
    assert before == {path: path.stat().st_size for path in checkpoints.rglob("*")}


def test_a_job_begins_where_a_replay_of_the_release_ended(release: Path) -> None:
    expected = replayed(release)
    before = lines_of(release / "alerts" / "warm.jsonl")
    (release / "control" / "1.jsonl").unlink()
    for number in range(2):
        if number:
            (release / "control" / "9.jsonl").write_text(END)
        inputs = ["--from", str(release / "warm"), "--events", str(release / "history.jsonl")]
        out = ["--alerts", str(release / "alerts" / "now"), "--checkpoint", str(release / "jobs" / "new")]
        out.append("--available-now")
        assert main(["run", *inputs, "--control", str(release / "control"), *TIMES, *out]) == 0
    assert_same([*before, *lines_of(release / "alerts" / "now")], expected)


def test_letters_of_the_release_come_back(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in lines_of(release / "events", release / "rest") if line != "{"]
    (release / "history.jsonl").write_text("\n".join(lines))
    letters = release / "jobs" / "stopped" / "dead_letters"
    options = ["--rules", str(release / "rules"), "--events", str(release / "history.jsonl")]
    assert main(["job", "letters", "replay", str(letters), *options]) in (0, 1)
    assert "letters: 1 late, 1 unreadable; 1 events come back" in capsys.readouterr().out


def test_a_job_taken_over_and_one_built_from_the_topic_refuse_the_same_change(release: Path) -> None:
    """When two publishers of this build send a change at once, both jobs take the first."""
    savepoint = open_savepoint(Target(str(release / "savepoint")), release / "work")
    payload = payload_in(savepoint)
    job = Job.from_json(payload.job)
    lists = ListStore(release / "lists")
    (release / "lists").mkdir()
    load_lists(savepoint, release / "lists")
    taken_over = rulebook_from_bytes(payload.engine["rulebook"].encode(), job.schema, job.domains, lists)
    taken_over.keep_levels(job.levels_count)
    records = [parsed(json.loads(line)["value"]) for line in lines_of(release / "topic.jsonl")]
    anew = deploy(read_rules(release / "rules")[0]).rulebook
    assert Counter(anew.apply(record, None).kind for record in records) == {"applied": 9}
    base = next(record for record in records if isinstance(record, UpsertRecord) and record.id == "twice")
    first, second = (against(base, base, version=3, severity=level) for level in ("high", "critical"))
    for book in (taken_over, anew):
        assert [book.apply(record, None).kind for record in (first, second)] == ["applied", "refused"]


def parsed(text: str) -> ControlRecord:
    record, problems = parse_control(text)
    assert record is not None, problems
    return record


EXACT = SOURCE.replace("seq    small", "seq    small{2}")
OPEN = EXACT.replace("{2}", "{2,}")
PAYMENTS = """event payment { tx_id id  event_time time  card_id string  amount decimal(2) }
pattern twice by card_id {
  seq    small{2} -> large  within 1 h
  where  small: payment  amount < 2.00
         large: payment  amount > 50.00
  emit   amount = large.amount
}
"""


@pytest.fixture
def earlier_build() -> Iterator[pytest.MonkeyPatch]:
    """Compute hashes as builds before 0.3 did, until `undo`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meaning, "_with_both_counts", lambda words: words)
        meaning._hashes.cache_clear()
        meaning._declared.cache_clear()
        yield patch
    now(patch)


def now(patch: pytest.MonkeyPatch) -> None:
    patch.undo()
    meaning._hashes.cache_clear()
    meaning._declared.cache_clear()


def test_the_earlier_build_gave_one_hash(earlier_build: pytest.MonkeyPatch) -> None:
    exact, open_ended = upsert(1, source=EXACT), upsert(1, source=OPEN)
    before = content_hash(exact)
    assert before == content_hash(open_ended)
    now(earlier_build)
    assert before == content_hash(open_ended) == digest_of(open_ended) == digest_of(exact) == earlier_hash(exact)
    assert earlier_hash(open_ended) is None, "it is unchanged"
    assert content_hash(exact) != before


def test_a_lock_of_the_earlier_build_asks_for_a_new_version(earlier_build: pytest.MonkeyPatch) -> None:
    records = [upsert(1, source=EXACT), upsert(1, "other", source=OPEN)]
    lock, problems = locked(records, {})
    assert problems == []
    now(earlier_build)
    [problem] = problems_of_lock(records, lock)
    assert problem.rule_id == records[0].id
    assert "a hash that other texts can have" in problem.message
    assert "cep rules bump" in problem.command


def test_a_saved_rulebook_goes_on_and_tells_the_texts_apart(earlier_build: pytest.MonkeyPatch) -> None:
    first, second = upsert(1, source=EXACT), upsert(2, source=EXACT, severity="high")
    old = Rulebook(SCHEMA, None)
    assert [old.apply(record, None).kind for record in (first, against(second, first))] == ["applied"] * 2
    data = rulebook_bytes(old)
    names_old_hash = against(second, second, version=3)
    now(earlier_build)
    other_text = upsert(2, source=OPEN, severity="high")
    copies = rulebook_from_bytes(data, SCHEMA, None), rulebook_from_bytes(data, SCHEMA, None)
    assert copies[0].apply(second, None).kind == "ignored"
    outcome = copies[0].apply(other_text, None)
    assert outcome.kind == "refused"
    assert outcome.is_conflict
    # A change that an earlier build wrote against the version, and one of this build.
    assert copies[0].apply(names_old_hash, None).kind == "applied"
    assert copies[1].apply(against(second, second, version=3), None).kind == "applied"
    saved_again = rulebook_from_bytes(rulebook_bytes(copies[0]), SCHEMA, None)
    assert rulebook_bytes(saved_again) == rulebook_bytes(copies[0])


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_open_runs_go_on(store: str, tmp_path: Path, earlier_build: pytest.MonkeyPatch) -> None:
    """The first half is matched by the earlier build: every card has one or two small payments by then."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "twice.cep").write_text(PAYMENTS)
    (tmp_path / "rules" / "twice.toml").write_text(rule_text("twice", "../twice.cep", message="{amount}"))
    events = [
        {"tx_id": f"{card}-{number}", "event_time": f"2026-01-01T00:{number:02}:00Z", "card_id": card, "amount": amount}
        for number, amounts in enumerate([(1, 1), (1, 60), (60, 1), (60, 60)])
        for card, amount in zip("ab", map(float, amounts), strict=True)
    ]
    (tmp_path / "events").mkdir()
    everything = tmp_path / "all.jsonl"
    everything.write_text("".join(json.dumps(event) + "\n" for event in events))
    run = [
        "run", "--rules", str(tmp_path / "rules"), "--events", str(tmp_path / "events"), "--available-now",
        "--checkpoint", str(tmp_path / "job"), "--alerts", str(tmp_path / "alerts"), "--lateness", "0 s",
    ]  # fmt: skip
    options = ["--store", "memory"] if store == "memory" else []
    for number, half in enumerate((events[:4], events[4:])):
        if number:
            now(earlier_build)
        text = "".join(json.dumps(event) + "\n" for event in half)
        (tmp_path / "events" / f"{number}.jsonl").write_text(text)
        assert main([*run, *options]) == 0
    replayed = tmp_path / "replayed.jsonl"
    assert main(["replay", *run[1:3], "--events", str(everything), "--out", str(replayed)]) == 0
    sent = sorted(line for file in (tmp_path / "alerts").glob("*.jsonl") for line in file.read_text().splitlines())
    assert sent
    assert sent == sorted(replayed.read_text().splitlines())


UNTIL = "2030-01-01T00:00:00Z"
DOMAINS = (("card_id",),)


def versions(first: int) -> list[Signable]:
    """Return one version of each kind of change, numbered from `first` on."""
    return [
        upsert(first, by="Ada", reason="why"), upsert(first + 1, params={"large": 7}),
        *(upsert(number, status="shadow") for number in range(first + 2, first + 4)),
        upsert(first, "s", params={"large": 9}), retire(first + 1, "s"),
        RollbackRecord(id="s", version=first + 2, to_version=first, rule=upsert(first, "s", params={"large": 9})),
        PauseRecord(id="r", version=first), ResumeRecord(id="r", version=first + 1),
        PauseRecord(id="not_there", version=first),
        *(SnoozeRecord(id="r", version=first, until=UNTIL, key=key, by="Bob") for key in ("card-7", "card-8", None)),
        ListRecord(id="l", of="string", version=first, change="replace", entries=["a"], parts=2, whole="1" * 64),
    ]  # fmt: skip


def data(records: list[Signable], kind: str) -> tuple[bytes, ...]:
    """Return the records as JSON, each signed as the change of the one before of its line."""
    signed: dict[tuple[str, int], Signable] = {}
    for record in records:
        line = version_line(record)
        before = signed.get((line, record.version - 1))
        signed[line, record.version] = by_two(record, before) if kind == "signed" else record
    return tuple(record.to_json() for record in signed.values())


def applied(kind: str) -> Rulebook:
    book = governed(new_book(), kind)
    refused = (upsert(9, "t", params={"no_such": 1}), by_two(upsert(1, "u", params={"no_such": 1})), upsert(8, "v"))
    apply_records(book, (*data(versions(1), kind), *(record.to_json() for record in refused)), 1_000)
    forget_keys(book, {"card-7"})
    return book


def governed(book: Rulebook, kind: str) -> Rulebook:
    Job(SCHEMA, DOMAINS, trust=TRUST if kind == "signed" else None, is_audited=True).govern(book)
    return book


@pytest.mark.parametrize("kind", ["signed", "unsigned"])
def test_an_earlier_rulebook_goes_on(kind: str) -> None:
    saved = Path(__file__).with_name(f"earlier_rulebook.{kind}.json").read_bytes()
    earlier, now = governed(rulebook_from_bytes(saved, SCHEMA, DOMAINS), kind), applied(kind)
    assert rulebook_bytes(earlier) == rulebook_bytes(now)
    assert rule_status(earlier) == rule_status(now)
    # Copies, other records of the same versions, skipped versions, and the next ones.
    later = [
        *data(versions(1), kind), *data([upsert(1, params={"large": 8}), upsert(3), upsert(4)], kind),
        *data(versions(6), kind), *data(versions(1) + versions(3), kind), *data(versions(1) + versions(5), kind),
    ]  # fmt: skip
    counters: Counter[str] = Counter()
    for record in later:
        lines, counts, _ = apply_records(earlier, (record,), 2_000)
        assert (lines, counts) == apply_records(now, (record,), 2_000)[:2]
        counters += counts
    assert rule_status(earlier) == rule_status(now)
    assert {"control_applied", "control_ignored", "control_refused"} <= counters.keys()
