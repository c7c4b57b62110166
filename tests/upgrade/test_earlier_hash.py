"""Builds before 0.3 gave `{2}` and `{2,}` one hash: their jobs go on, and both texts have a hash of their own now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cep.cli.main import main
from cep.rulebook import meaning
from cep.rulebook.lock import locked, problems_of_lock
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.statement import digest_of
from tests.rulebook.records import SCHEMA, SOURCE, upsert
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
