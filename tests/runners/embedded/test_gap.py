"""Records that are gone before the job reads them: alerts after the gap name it, or are as if it had not happened."""

from __future__ import annotations

from collections import Counter
from random import Random

import orjson
import pytest

from cep.base.audit import is_audit
from cep.base.utc import utc_ms
from cep.model.rule import ControlRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Workers
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.runners.embedded.cases import cut, latest_ms, save
from tests.runners.embedded.test_engine import feed, finish
from tests.runners.parity_cases import Stream, drawn
from tests.seeds import seeds

HOUR_MS = 3_600_000


def unsuppressed(seed: int) -> Stream:
    """Return rules of a seed with histories, repeats, absences and time-outs, without suppression.

    Their histories are limited.
    """
    stream, records = drawn(seed, customers=10), list[ControlRecord]()
    for record in stream.records:
        assert isinstance(record, UpsertRecord)
        source = record.source.replace(", before = last(payment).amount", "")
        records.append(record.model_copy(update={"suppress": None, "source": source}))
    return Stream(stream.lines, records)


def make_engine(stream: Stream, *, is_audited: bool = False) -> Engine:
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 4, 1, 0, is_audited=is_audited)
    return Engine(job, tuple(record.to_json() for record in stream.records), MemoryStore(), Workers(1))


@pytest.mark.parametrize("seed", seeds(24, 2))
def test_an_alert_after_a_gap_names_it_unless_nothing_of_it_could_matter(seed: int) -> None:
    stream, chance = unsuppressed(seed), Random(seed)
    whole, counters = make_engine(stream), Counter[str]()
    right = set(feed(whole, cut(stream.lines, 6, seed), counters) + finish(whole, counters))
    first = chance.randrange(len(stream.lines) // 4, len(stream.lines) // 2)
    end = first + chance.randrange(1, len(stream.lines) // 4)
    gone = stream.lines[first:end]
    engine = make_engine(stream)
    before = feed(engine, cut(stream.lines[:first], 3, seed), counters, 1)
    assert set(before) <= right
    now_ms = latest_ms(gone) + chance.choice((0, HOUR_MS))
    assert engine.accept_gaps({"p": (first, end)}, now_ms).counters == {"records_gone": end - first}
    save(engine, 9)
    again = Engine(engine.job, (), engine.store, Workers(1))  # the decision outlives the process
    again.restore()
    alerts = feed(again, cut(stream.lines[end:], 3, seed), counters) + finish(again, counters)
    wrong = list(map(orjson.loads, set(alerts) - right))
    assert all("history_from" in alert for alert in wrong)
    assert all(utc_ms(alert["history_from"]) > latest_ms(gone) for alert in wrong)
    later_ms = now_ms + 40 * 24 * HOUR_MS
    late = [alert for alert in map(orjson.loads, alerts) if utc_ms(alert["events"][0]["event_time"]) > later_ms]
    assert all("history_from" not in alert for alert in late), "no window is that long"


def test_the_audit_of_a_job_has_a_line_about_it() -> None:
    stream = unsuppressed(1)
    engine = make_engine(stream, is_audited=True)
    letters = list(engine.step([], (), {}).dead_letters)
    now_ms = latest_ms(stream.lines)
    letters += engine.accept_gaps({"p[1]": (5, 9), "p[0]": (7, 8)}, now_ms).dead_letters
    lines = [letter for letter in letters if is_audit(letter)]
    gap_line = orjson.loads(lines[-1])
    assert (gap_line["what"], gap_line["offsets"]) == ("gap", {"p[0]": [7, 8], "p[1]": [5, 9]})
    assert utc_ms(gap_line["history_from"]) == now_ms + (engine.job.ahead_ms or 0) + 1
    head = engine.audit_head()
    assert head is not None
    assert head["hash"] == gap_line["hash"]
    engine.close()
