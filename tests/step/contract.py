"""The contract of the ports of every runner, as plain functions.

pytest runs them over memory, RocksDB and a dictionary in the form of Spark's state. A Spark query runs them over that
state itself. All events are of key group 0. Each check begins with an empty case.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import orjson
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import utc_ms, utc_text
from cep.columnar.batch import TEXT, EventBatch
from cep.columnar.decode import Decoded, decode_json
from cep.engine.keyed_state import empty_state
from cep.histories.store import Histories
from cep.kernels.groups import NEW, OTHER, SAME
from cep.model.rule import HeartbeatRecord, RetireRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.sinks.json_form import json_lines
from cep.step.event_time import NO_CLOCK, PartitionTime, TimesRead, read_time
from cep.step.job import ARRIVAL, Job
from cep.step.level import drop_pages, match_pages
from cep.step.match import MatchOutput, match_events
from cep.step.ports import LevelPorts, Ports
from cep.step.rules import JobRules, NamedRulebook, programs_by_level, rulebook_of
from cep.step.step import MicroBatch, Outcome, Progress, step
from cep.step.validate import validate_events

SOURCE = """
event payment {
  tx_id       id
  event_time  time
  card        string
  shop        string
  amount      decimal(2)
}
pattern small_large() by card {
  seq    small -> large within 1 min
  where  small: payment  amount < 1.00
         large: payment  amount > 5.00
}
pattern busy_shop() by shop {
  seq    one
  where  one: payment  count(payment over 1 min) >= 3
}
"""
MINUTE_MS, DAY_MS = 60_000, 86_400_000
CARD, SHOP = 0, 1  # the numbers of the key domains


def _record(name: str, version: int = 1) -> UpsertRecord:
    return UpsertRecord(
        id=name, version=version, pattern=name, source=SOURCE, status="live", severity="low", owner="o", message="{key}"
    )


RECORDS = [_record("small_large"), _record("busy_shop")]
DEPLOYED = deploy(RECORDS)
PROGRAMS = programs_by_level(DEPLOYED.rulebook, DEPLOYED.schema)[0]


def job_rules(*, lateness_ms: int = 0, order: str = "event_time", dedup_ms: int = 0) -> JobRules:
    """Return the rules above, in a job with one key group of two pages."""
    job = Job(DEPLOYED.schema, DEPLOYED.key_domains, 1, 2, lateness_ms, order=order, dedup_ms=dedup_ms)
    assert job.domains == (("card",), ("shop",))
    return JobRules(job, tuple(record.to_json() for record in RECORDS))


RULES = job_rules(lateness_ms=MINUTE_MS)
FAR_MS = utc_ms("2099-01-01T00:00:00Z")


class Case(Protocol):
    """One key group of a runner, empty at first."""

    def open(self, rules: JobRules) -> Ports:
        """Return the ports for one micro-batch of this job."""

    def close(self) -> None:
        """End the micro-batch: the next one sees its changes."""


Check = Callable[[Case], None]


def level_ports(case: Case, rules: JobRules = RULES) -> LevelPorts:
    """Begin a micro-batch and return the keyed state of its only level."""
    (ports,) = case.open(rules).spread(0, {}, TIME_MS_MIN, lambda portion: portion.ports)
    return ports


def events(number: int, *texts: str) -> EventBatch:
    """Return events written as `id card@ms amount`, all of shop s, with the key of a domain."""
    valid = validate_events(RULES.job, read_events(*texts))
    assert not valid.dead_letters
    return valid.batches[number]


def read_events(*texts: str) -> Decoded:
    """Return the same events, decoded."""
    fields = (text.replace("@", " ").split() for text in texts)
    records = [
        orjson.dumps({"tx_id": id_, "event_time": int(ms), "card": card, "shop": "s", "amount": amount})
        for id_, card, ms, amount in fields
    ]
    return decode_json(DEPLOYED.schema, pa.array(records, pa.binary()))


def ids(batch: EventBatch | None) -> list[str]:
    return [] if batch is None else sorted(batch.event_id.to_pylist())


# ------------------------------------------------------------------------------------------------- the single ports


def seen_ids_are_known_until_their_bucket_is_forgotten(case: Case) -> None:
    hashes = np.array([[5, 2**64 - 1, 5], [1, 5, 2]], np.uint64)
    keys = pa.array(["c", "d", "c"], TEXT)
    (part,) = level_ports(case).parts
    secrets = np.broadcast_to(part.seen.secrets(CARD, 3, keys), (3, 2)).tolist()
    assert secrets[0] == secrets[2]
    assert secrets != np.broadcast_to(part.seen.secrets(CARD, 4, keys), (3, 2)).tolist()
    assert part.seen.take(CARD, 3, hashes, keys).tolist() == [NEW, NEW, OTHER]
    assert part.seen.take(CARD, 4, hashes[:, 2:], keys[2:]).tolist() == [NEW]
    assert part.seen.take(CARD, 3, hashes, keys).tolist() == [SAME, SAME, OTHER], "in the same micro-batch"
    case.close()
    (part,) = level_ports(case).parts
    assert np.broadcast_to(part.seen.secrets(CARD, 3, keys), (3, 2)).tolist() == secrets, "stored with the ids"
    assert part.seen.take(CARD, 3, hashes, keys).tolist() == [SAME, SAME, OTHER]
    assert part.seen.take(CARD, 4, hashes, keys).tolist() == [OTHER, NEW, SAME]
    assert part.seen.take(SHOP, 3, hashes[:, :1], keys[:1]).tolist() == [NEW], "another key domain"
    part.seen.forget(4)
    case.close()
    (part,) = level_ports(case).parts
    part.seen.forget(4)  # as every micro-batch does: older buckets in the store are not in use
    assert part.seen.take(CARD, 4, hashes, keys).tolist() == [OTHER, SAME, SAME]
    assert part.seen.take(CARD, 3, hashes, keys).tolist() == [NEW, NEW, OTHER], "of a bucket that is forgotten"


def _release(case: Case, due_ms: int, *fresh: EventBatch | None) -> list[list[str]]:
    """Do as every micro-batch: ask for every key domain."""
    (part,) = level_ports(case).parts
    released = [ids(part.waiting.release(number, batch, due_ms)) for number, batch in enumerate(fresh)]
    case.close()
    return released


def waiting_events_come_back_when_they_are_due(case: Case) -> None:
    first = events(CARD, "a c@10 1", "b d@20 1", "c c@30 1")
    assert _release(case, 15, first, None) == [["a"], []]
    assert _release(case, 15, None, events(SHOP, "x c@12 1", "y c@40 1")) == [[], ["x"]]
    assert _release(case, 20, None, None) == [[], []], "20 is not before 20"
    assert _release(case, 31, events(CARD, "e c@25 1", "f c@35 1"), None) == [["b", "c", "e"], []]
    assert _release(case, 41, None, None) == [["f"], ["y"]]
    assert _release(case, TIME_MS_MAX, None, None) == [[], []]


def events_that_are_due_at_once_never_wait(case: Case) -> None:
    assert _release(case, 100, events(CARD, "a c@10 1"), events(SHOP, "a c@10 1")) == [["a"], ["a"]]
    assert _release(case, TIME_MS_MAX, None, None) == [[], []]


def pages_give_back_what_was_put(case: Case) -> None:
    program = PROGRAMS["card",]
    batch = events(CARD, *(f"{n} c{n}@{n} 0.50" for n in range(20)))
    opened = match_events(program, None, batch, TIME_MS_MIN, MatchOutput())
    assert len(opened) == 20
    pages = level_ports(case).pages[CARD]
    slots = np.unique(pages.slots(opened.keys))
    assert len(slots) > 1
    assert pages.take(slots, program) == (None, {})
    pages.put(slots, opened, program)
    case.close()
    pages = level_ports(case).pages[CARD]
    runs, changes = pages.take(slots, program)
    assert runs is not None
    assert (sorted(runs.keys.to_pylist()), len(runs), changes) == (sorted(opened.keys.to_pylist()), 20, {})
    some = pages.slots(batch.key[:1])
    alone, _ = pages.take(some, program)
    assert alone is not None
    assert set(pages.slots(alone.keys).tolist()) == set(some.tolist()), "a page has the keys of its slot alone"
    pages.put(some, empty_state(program), program)
    case.close()
    pages = level_ports(case).pages[CARD]
    assert pages.take(some, program) == (None, {}), "an empty page is removed"
    other_runs, _ = pages.take(slots, program)
    assert other_runs is not None
    assert len(other_runs) == 20 - len(alone)
    nobody = pa.array([], TEXT)
    assert pages.touched(nobody, MINUTE_MS - 1).tolist() == [], "nothing has expired"
    rest = np.setdiff1d(slots, some)
    assert pages.touched(nobody, TIME_MS_MAX).tolist() == rest.tolist()
    assert pages.touched(batch.key[:1], TIME_MS_MAX).tolist() == slots.tolist()


def dropped_pages_are_gone_and_counted(case: Case) -> None:
    program, output = PROGRAMS["card",], MatchOutput()
    match_pages(level_ports(case).pages[CARD], program, events(CARD, "a c@1 0.10", "b d@2 0.10"), 2, output)
    case.close()
    assert output.counters["runs"] == 2
    for orphans_count in (2, 2):  # the second time, the orphans are gone
        drop_pages(level_ports(case).pages[CARD], output)
        case.close()
        assert (output.counters["runs"], output.counters["runs_orphaned"]) == (0, orphans_count)


def histories_are_kept_until_they_are_over(case: Case) -> None:
    program, output = PROGRAMS["shop",], MatchOutput()
    for number, time_ms in enumerate((1_000, 2_000, 3_000)):
        pages = level_ports(case).pages[SHOP]
        match_pages(pages, program, events(SHOP, f"{number} c@{time_ms} 1"), time_ms, output)
        case.close()
        assert output.alert_table().num_rows == (number == 2)
    histories = level_ports(case).pages[SHOP].histories
    (slot,) = histories.slots(pa.array(["s"], TEXT)).tolist()
    past = histories.read(slot)
    assert past.keys.to_pylist() == ["s"]
    assert histories.expired(3_000) == []
    assert histories.expired(TIME_MS_MAX) == [slot]
    histories.write(slot, past, 5_000)
    case.close()
    histories = level_ports(case).pages[SHOP].histories
    assert (histories.expired(4_999), histories.expired(5_000)) == ([], [slot])
    histories.remove(slot)
    histories.remove(slot)
    case.close()
    histories = level_ports(case).pages[SHOP].histories
    assert histories.expired(TIME_MS_MAX) == []
    assert len(histories.read(slot).keys) == len(Histories().keys) == 0


# ------------------------------------------------------------------------------------------------- whole micro-batches


class Driver:
    """A job that processes its micro-batches over one case."""

    def __init__(self, case: Case, rules: JobRules) -> None:
        self._case = case
        self._rules = rules
        self.progress = Progress(rulebook_of(rules, ""))
        self.counters: Counter[str] = Counter()
        self.alerts: list[dict[str, object]] = []
        self.late: list[str] = []

    def do(
        self, *texts: str, controls: Sequence[bytes] = (), partition: str = "p", is_behind: bool = False,
        now_ms: int = NO_CLOCK,
    ) -> Outcome:  # fmt: skip
        """Process a micro-batch with these events of one partition, each by both of its keys."""
        job = self._rules.job
        read = read_events(*texts)
        valid = validate_events(job, read, now_ms)
        self.counters.update({name: valid.counters[name] for name in ("events_ahead",)})
        batches = {number: [batch] for number, batch in enumerate(valid.batches) if len(batch)}
        times = TimesRead({}, now_ms=now_ms)
        if texts:
            time = read_time(read.time_ms, now_ms, job.ahead_ms, is_behind=is_behind)
            times = TimesRead({partition: time}, valid.first_ms, now_ms)
        outcome = step(self.progress, self._case.open(self._rules), MicroBatch(batches, tuple(controls), times))
        self._case.close()
        self.progress = outcome.progress
        self.counters.update(outcome.counters)
        self.late += [letter["event_id"] for letter in outcome.events_aside]
        self.alerts += [orjson.loads(line) for table in outcome.alerts for line in json_lines(table)]
        return outcome

    def fired(self) -> list[tuple[object, object]]:
        return sorted((alert["rule_id"], alert["key"]) for alert in self.alerts)


def steps_2_and_3_move_progress_alone(case: Case) -> None:
    driver = Driver(case, RULES)
    first = driver.progress
    driver.do("a c@100000 1", is_behind=True)
    assert driver.progress.times == {"p": PartitionTime(100_000, is_behind=True)}
    assert (driver.progress.watermark_ms, driver.progress.since_ms) == (100_000 - MINUTE_MS, 100_000)
    assert first.watermark_ms == TIME_MS_MIN, "a value never changes"
    retire = RetireRecord(id="busy_shop", version=2)
    outcome = driver.do(controls=[b"{nothing", retire.to_json()])
    assert [orjson.loads(letter)["code"] for letter in outcome.refused] == ["control_unreadable"]
    assert outcome.rule_counters == {"control_unreadable": 1, "control_applied": 1}
    assert driver.progress.rulebook.rulebook.epoch == first.rulebook.rulebook.epoch + 1
    assert driver.progress.watermark_ms == 100_000 - MINUTE_MS


def step_3_lets_a_heartbeat_count_for_what_comes_behind_it(case: Case) -> None:
    """A new job meets an old heartbeat and a backlog of two partitions."""
    driver = Driver(case, job_rules(lateness_ms=MINUTE_MS))
    beat = HeartbeatRecord(event_time=utc_text(900_000)).to_json()
    driver.do("a c@100000 0.50", controls=[beat], partition="p", is_behind=True)
    driver.do("b d@90000 0.50", partition="q", is_behind=True)
    driver.do("c c@110000 9", partition="p")
    assert driver.progress.watermark_ms == 100_000 - MINUTE_MS, "more of q waits in the source"
    driver.do("d d@91000 9", partition="q")
    assert driver.progress.watermark_ms == 900_000
    assert driver.counters["late_events"] == 0
    assert [key for rule, key in driver.fired() if rule == "small_large"] == ["c", "d"]
    driver.do("e z@899000 1", partition="p", is_behind=True)
    assert driver.counters["late_events"] == 1, "it came behind the heartbeat"
    driver.do(controls=[HeartbeatRecord(event_time=utc_text(1_000_000)).to_json()])
    driver.do("f z@950000 1", partition="p")
    assert (driver.counters["late_events"], driver.progress.watermark_ms) == (1, 1_000_000)


def steps_4_and_5_leave_out_what_came_before_and_set_aside_what_is_late(case: Case) -> None:
    driver = Driver(case, job_rules(lateness_ms=MINUTE_MS, dedup_ms=DAY_MS))
    driver.do("a c@100000 0.50", "b d@200000 0.50")
    driver.do("a c@100000 0.50", "late c@139999 0.50", "c d@140000 9")
    assert driver.counters["duplicates"] == 1
    assert driver.counters["late_events"] == 1, "once, though it has two keys"
    assert driver.late == ["late", "late"], "a letter for each of its keys"
    driver.do("late c@139999 0.50")
    assert (driver.counters["duplicates"], driver.counters["late_events"]) == (2, 1), "a late event is known too"


def step_6_lets_events_wait_for_those_before_them(case: Case) -> None:
    driver = Driver(case, RULES)
    driver.do("large c@90000 9", "other d@95000 1")
    assert driver.fired() == []
    driver.do("small c@80000 0.50")
    driver.do("end z@300000 1")
    assert driver.fired() == [("busy_shop", "s"), ("small_large", "c")]
    assert driver.counters["late_events"] == 0


def step_6_is_left_out_in_order_of_arrival(case: Case) -> None:
    driver = Driver(case, job_rules(lateness_ms=MINUTE_MS, order=ARRIVAL))
    driver.do("small c@80000 0.50")
    driver.do("large c@90000 9")
    assert driver.fired() == [("small_large", "c")]


def step_7_matches_alike_wherever_the_stream_is_cut(case: Case) -> None:
    random = np.random.default_rng(5)
    times = np.sort(random.integers(0, 40 * MINUTE_MS, 120))
    texts = [f"{n} c{n % 7}@{ms} {random.choice(['0.50', '3', '9'])}" for n, ms in enumerate(times.tolist())]
    driver, number = Driver(case, job_rules()), 0
    while number < len(texts):
        size = int(random.integers(1, 12))
        driver.do(*texts[number : number + size])
        number += size
    driver.do(controls=[HeartbeatRecord(event_time=utc_text(DAY_MS)).to_json()])
    output = MatchOutput()
    for domain, key in ((CARD, "card"), (SHOP, "shop")):
        match_events(PROGRAMS[key,], None, events(domain, *texts), DAY_MS, output)
    expected = [orjson.loads(line) for line in json_lines(output.alert_table())]
    assert len(expected) > 20
    assert {alert["alert_id"] for alert in driver.alerts} == {alert["alert_id"] for alert in expected}
    assert driver.counters["runs"] == 0, "all windows have closed"
    assert driver.counters["alerts[small_large@1]"] == output.counters["alerts[small_large@1]"]


def step_8_forgets_a_version_once_nothing_of_it_can_match(case: Case) -> None:
    driver = Driver(case, job_rules())

    def versions(rulebook: NamedRulebook) -> list[int]:
        return [rule.version for rule in rulebook.rulebook.rules["small_large"].whole]

    driver.do("a c@1000 0.50")
    outcome = driver.do(controls=[_record("small_large", 2).to_json()])
    assert versions(outcome.progress.rulebook) == [1, 2], "the runs of version 1 drain"
    outcome = driver.do("b c@2000 9", "end z@900000 1")
    assert [(alert["rule_id"], alert["version"]) for alert in driver.alerts] == [("small_large", 1)]
    assert versions(outcome.in_force.rulebook) == [1, 2], "what the micro-batch was matched with"
    assert versions(outcome.progress.rulebook) == [2]


def an_event_from_the_future_hides_nothing(case: Case) -> None:
    """One of 41 events is dated 2099, and another is ahead within the bound; the job restarts between any two."""
    driver, start_ms = Driver(case, job_rules()), 1_700_000_000_000
    now_ms, heartbeat = start_ms, HeartbeatRecord(event_time=utc_text(FAR_MS)).to_json()
    driver.do(f"far z@{FAR_MS} 9", f"near z@{now_ms + MINUTE_MS} 9", now_ms=now_ms)
    refused = driver.do(controls=[heartbeat], now_ms=now_ms)
    assert [orjson.loads(letter)["code"] for letter in refused.refused] == ["control_ahead"]
    assert refused.rule_counters == {"control_ahead": 1}
    assert driver.progress.watermark_ms == TIME_MS_MIN
    for card in range(20):
        now_ms += 10
        driver.do(f"small{card} c{card}@{now_ms - 5} 0.50", f"large{card} c{card}@{now_ms - 4} 9", now_ms=now_ms)
        assert driver.progress.watermark_ms == now_ms - 4
    driver.do(now_ms=now_ms + 2 * MINUTE_MS)
    assert driver.progress.watermark_ms == start_ms + MINUTE_MS, "the clock has reached it"
    assert len([rule for rule, _ in driver.fired() if rule == "small_large"]) == 20
    assert (driver.counters["events_ahead"], driver.counters["late_events"]) == (1, 0)


def a_partition_that_is_ahead_makes_no_other_idle(case: Case) -> None:
    driver, now_ms = Driver(case, job_rules()), 1_700_000_000_000
    driver.do(f"first y@{now_ms - 700_000} 3", partition="slow", now_ms=now_ms)
    for card in range(20):
        now_ms += 1_000
        driver.do(f"fast{card} z{card}@{now_ms} 3", partition="fast", now_ms=now_ms)
        driver.do(f"small{card} c{card}@{now_ms - 600_000} 0.50", partition="slow", now_ms=now_ms)
        driver.do(f"large{card} c{card}@{now_ms - 599_999} 9", partition="slow", now_ms=now_ms)
    assert driver.counters["late_events"] == 0
    driver.do(now_ms=now_ms + MINUTE_MS)
    assert len([rule for rule, _ in driver.fired() if rule == "small_large"]) == 20


CHECKS: tuple[Check, ...] = (
    an_event_from_the_future_hides_nothing,
    a_partition_that_is_ahead_makes_no_other_idle,
    seen_ids_are_known_until_their_bucket_is_forgotten,
    waiting_events_come_back_when_they_are_due,
    events_that_are_due_at_once_never_wait,
    pages_give_back_what_was_put,
    dropped_pages_are_gone_and_counted,
    histories_are_kept_until_they_are_over,
    steps_2_and_3_move_progress_alone,
    step_3_lets_a_heartbeat_count_for_what_comes_behind_it,
    steps_4_and_5_leave_out_what_came_before_and_set_aside_what_is_late,
    step_6_lets_events_wait_for_those_before_them,
    step_6_is_left_out_in_order_of_arrival,
    step_7_matches_alike_wherever_the_stream_is_cut,
    step_8_forgets_a_version_once_nothing_of_it_can_match,
)
