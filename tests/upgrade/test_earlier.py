"""Jobs of builds before 0.3 go on.

Those builds gave `{2}` and `{2,}` one hash; both texts have a hash of their own now. They saved rulebooks in two
ledgers: this build judges later records as if it had been there. The files earlier_rulebook.*.json are `rulebook_bytes`
of the book of `applied`, as build 830e9635 wrote them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cep.cli.main import main
from cep.model.rule import ListRecord, PauseRecord, ResumeRecord, RollbackRecord, SnoozeRecord
from cep.rulebook import meaning
from cep.rulebook.erasure import forget_keys
from cep.rulebook.lock import locked, problems_of_lock
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.trust import Signable, digest_of, line_of
from cep.step.job import Job
from cep.step.rules import apply_records, rule_status
from tests.rulebook.people import TRUST, by_two
from tests.rulebook.records import SCHEMA, SOURCE, new_book, retire, upsert
from tests.rulebook.test_publish import against

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
    assert "one hash for `{3}` and `{3,}`" in problem.message
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
    (tmp_path / "rules" / "twice.toml").write_text(
        'id = "twice"\npattern = "twice"\nfile = "../twice.cep"\nversion = 1\nstatus = "live"\n'
        'severity = "high"\nowner = "team"\nmessage = "{amount}"\n'
    )
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
        line = line_of(record)
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
