"""The report of keyed state: examples in words, and sums that agree with the state itself."""

from __future__ import annotations

import pytest

from cep.engine.advance import advance
from cep.engine.migrate import migrate_state
from cep.report.keyed_state import SHARED, BoundEvent, count_runs, runs_of_key
from cep.state.pages import StoredPage, encode_page
from tests.engine.rules import batch, program, rule
from tests.report.random_state import DOMAIN, random_state

CHAIN = "seq x -> y -> z within 1 min\nwhere x: e kind == a\ny: e kind == b\nz: e kind == c"
LOOP = "seq x+ -> y within 1 min\nwhere x: e kind == a\ny: e kind == b"
SILENCE = "seq x -> !y within 1 min\nwhere x: e kind == b\ny: e kind == c"


def test_runs_in_words() -> None:
    rules = program(rule(CHAIN, "chain"), rule(LOOP, "loop"), rule(SILENCE, "silence"))
    keyed_state = advance(rules, None, batch("k a@1000", "k b@2000", "other a@3000"), 0).keyed_state
    page = StoredPage(0, DOMAIN, encode_page(keyed_state))
    runs = {run.rule_id: run for run in runs_of_key([page], "k", [{DOMAIN: rules}])}
    assert runs.keys() == {"chain", "silence"}
    assert runs["chain"].bound == (
        BoundEvent("x", "e0", "e", "1970-01-01T00:00:01.000Z"),
        BoundEvent("y", "e1", "e", "1970-01-01T00:00:02.000Z"),
    )
    assert runs["chain"].waits_for == ("z",)
    assert runs["chain"].expires == "1970-01-01T00:01:01.000Z"
    assert runs["silence"].waits_for == ("the end of its window",)
    other = {run.rule_id: run.waits_for for run in runs_of_key([page], "other", [{DOMAIN: rules}])}
    assert other == {"chain": ("y",), "loop": ("x", "y")}
    levels = [{DOMAIN: program(rule(LOOP, "loop"), rule(SILENCE, "silence"))}, {DOMAIN: program(rule(CHAIN, "chain"))}]
    assert {run.rule_id: run for run in runs_of_key([page], "k", levels)} == runs
    assert list(runs_of_key([page], "nobody", [{DOMAIN: rules}])) == []
    shares = {(r.rule_id, r.runs, r.keys) for r in count_runs([page]).rules}
    assert shares == {("chain", 2, 2), ("loop", 1, 1), ("silence", 1, 1)}
    assert list(runs_of_key([page], "k", [{DOMAIN: program(rule(LOOP, "loop"))}])) == [], "its rules are gone"


@pytest.mark.parametrize("seed", range(60))
def test_sums_agree_and_bound_events_are_the_keys_own(seed: int) -> None:
    random_job = random_state(seed)
    if random_job is None:
        return
    rules, first, keyed_state, parts, pages = (
        random_job.rules,
        random_job.events,
        random_job.keyed_state,
        random_job.parts,
        random_job.pages,
    )
    counted = count_runs(pages)
    assert (counted.runs, counted.keys, counted.pages) == (len(keyed_state), len(keyed_state.keys), 2)
    assert sum(r.runs for r in counted.rules) == counted.runs
    assert counted.size == sum(len(page.content) for page in pages)
    with_runs = sum(len(page.content) for page, part in zip(pages, parts, strict=True) if len(part))
    assert abs(sum(r.size for r in counted.rules) - with_runs) <= 9, "but for rounding"
    runs = 0
    for key in keyed_state.keys.to_pylist():
        event_ids = {i for i, k in zip(first.event_id.to_pylist(), first.key.to_pylist(), strict=True) if k == key}
        for facts in runs_of_key(pages, key, [{DOMAIN: rules}]):
            runs += 1
            ids = [event.event_id for event in facts.bound]
            assert ids
            assert set(ids) <= event_ids
            assert len(set(ids)) == len(ids)
            assert [event.time for event in facts.bound] == sorted(event.time for event in facts.bound)
    assert runs == counted.runs


def test_starts_that_rules_share_are_told_once() -> None:
    later = [f"y{n}: e kind == b and amount == {n}.00" for n in range(6)]
    texts = [f"seq x -> y{n} within 1 min\nwhere x: e kind == a\n{later[n]}" for n in range(6)]
    rules = program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))
    keyed_state = advance(rules, None, batch("k a@1000", "k a@2000", "k b@3000 9.00"), 0).keyed_state
    page = StoredPage(0, DOMAIN, encode_page(keyed_state))
    runs = list(runs_of_key([page], "k", [{DOMAIN: rules}]))
    assert [(run.rule_id, run.bound[0].variable, run.bound[0].event_id) for run in runs if run.version == 0] == [
        ("r0 and 5 more", "x", "e0"), ("r0 and 5 more", "x", "e1"),
    ]  # fmt: skip
    assert runs[-1].waits_for == ("y0", "y1", "y2", "y3", "y4", "y5")
    shares = {(r.rule_id, r.runs, r.keys) for r in count_runs([page]).rules}
    assert (SHARED, 2, 1) in shares
    assert count_runs([page]).runs == len(runs)


def test_what_follows_a_start_is_told_as_what_it_may_be_to_the_rules() -> None:
    where = "where x: e kind == a\n y: e kind == b\n"
    texts = [f"seq x -> y -> z{n} within 1 min\n{where} z{n}: e kind == c and amount == {n}.00" for n in range(4)]
    rules = program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))
    keyed_state = advance(rules, None, batch("k a@1000", "k b@2000", "k b@3000", "j b@4000"), 0).keyed_state
    page = StoredPage(0, DOMAIN, encode_page(keyed_state))
    runs = [
        (run.rule_id, run.bound[0].variable, run.bound[0].event_id, run.waits_for)
        for run in runs_of_key([page], "k", [{DOMAIN: rules}])
    ]
    assert runs == [
        ("r0 and 3 more", "x", "e0", ("y",)),
        ("r0 and 3 more", "y", "e1", ("z0", "z1", "z2", "z3")),
    ]
    assert {(r.rule_id, r.runs, r.keys) for r in count_runs([page]).rules} == {(SHARED, 1, 1)}, (
        "a run is what begins one"
    )
    assert migrate_state(keyed_state, program())[1] == 1
