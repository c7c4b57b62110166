"""Suppressed alerts, their memory, and erased keys."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.audit import is_audit, texts_of, without_texts
from cep.base.errors import UsageError
from cep.base.secrets import secret_keys
from cep.cli.main import main
from cep.columnar.decode import key_of
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.lists.entries import keys_of
from cep.lists.store import Content, ListStore
from cep.model.rule import ListRecord, PauseRecord, SnoozeRecord
from cep.nfa.lists import GivenList
from cep.rulebook import suppression as memory_module
from cep.rulebook.deploy import schema_of
from cep.rulebook.erasure import ErasureRequest, check_request, digests_of, forget_keys, read_request, write_request
from cep.rulebook.files import declared_lists, list_record
from cep.rulebook.outcome import SnoozeReport
from cep.rulebook.publish import refusal_of_values
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.suppression import (
    NO_MEASURE,
    SEVERITIES,
    Fired,
    LastAlerts,
    Policies,
    count_suppressed,
    fired_from_json,
    fired_json,
    suppress_alerts,
)
from cep.rulebook.trust import Trust, with_nonce
from cep.step.rules import apply_records
from tests.columnar.protected import VISA, keys
from tests.rule_files import rule_text
from tests.rulebook.people import ADA, ADA_AGAIN, BOB, EVE, SIGNERS, TRUST, by_two
from tests.rulebook.records import SCHEMA, new_book, upsert

# Sent and suppressed alerts.


def alert(number: int, time_ms: int, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "alert_id": f"{number:04}", "rule_id": "a", "version": 1, "epoch": 1, "status": "live", "severity": "low",
        "priority": 100, "score": 0, "key": "c", "message": "", "measures": "{}", "content_hash": "f",
        "match_start": time_ms, "match_end": time_ms, "detected_at": time_ms, "last": f"t{time_ms}", **changes,
    }  # fmt: skip
    fields["events"] = [{"variable": "v", "event_id": fields.pop("last"), "event_time": time_ms}]
    return {
        **{name: "" for name in ALERT_SCHEMA.names if name not in fields},
        "origins": None,
        "history_cut": False,
        "history_folded": False,
        "history_from": None,
        "unconfirmed": False,
        "flawed": False,
        **fields,
    }


def table(*alerts: dict[str, Any]) -> pa.Table:
    return sort_alerts(pa.Table.from_pylist(list(alerts), schema=ALERT_SCHEMA))


def divided(alerts: pa.Table, policies: Policies, memory: Fired | None = None) -> tuple[list[str], dict[str, str]]:
    result = suppress_alerts(alerts, policies, memory or {})
    return result.alerts["alert_id"].to_pylist(), dict(
        zip(result.suppressed["alert_id"].to_pylist(), result.reasons, strict=True)
    )


def test_a_rule_fires_again_on_a_key_when_its_time_is_over() -> None:
    policies = Policies({("a", 1): (None, 1_000)})
    alerts = table(
        alert(1, 5_000), alert(2, 5_999), alert(3, 6_000), alert(4, 6_500), alert(5, 5_500, key="d"),
        alert(6, 5_500, rule_id="b"), alert(7, -500, key="e"), alert(8, -1, key="e"),
    )  # fmt: skip
    suppressed = dict.fromkeys(["0008", "0002", "0004"], "suppressed")
    assert divided(alerts, policies) == (["0007", "0001", "0005", "0006", "0003"], suppressed)


def test_only_the_first_of_a_group_fires_on_an_event() -> None:
    policies = Policies({("a", 1): ("cards", 0), ("b", 1): ("cards", 0), ("c", 1): ("others", 0)})
    alerts = table(
        alert(1, 5_000, priority=9), alert(2, 5_000, rule_id="b", priority=5), alert(3, 5_000, rule_id="c"),
        alert(4, 6_000, priority=9), alert(5, 6_000, rule_id="b", priority=5, last="another"),
    )  # fmt: skip
    assert divided(alerts, policies) == (["0002", "0003", "0004", "0005"], {"0001": "excluded"})


def test_a_snooze_holds_back_a_rule_or_a_key_until_its_date() -> None:
    policies = Policies({}, (SnoozeReport("a", None, 5_000, 6_000), SnoozeReport("b", "c", 0, 9_000)))
    alerts = table(
        alert(1, 4_999), alert(2, 5_000), alert(3, 6_000), alert(4, 5_000, rule_id="b"),
        alert(5, 5_000, rule_id="b", key="d"),
    )  # fmt: skip
    assert divided(alerts, policies) == (["0001", "0005", "0003"], {"0002": "snoozed", "0004": "snoozed"})


def test_a_large_fraud_is_not_hidden_behind_a_small_one() -> None:
    policies = Policies({("a", 1): (None, 1_000), ("a", 2): (None, 1_000)}, escalations={("a", 1): "amount"})
    alerts = table(
        alert(1, 5_000, measures='{"amount":5.10}'), alert(2, 5_100, measures='{"amount":5.10}'),
        alert(3, 5_200, measures='{"amount":900.00}'), alert(4, 5_300, measures='{"amount":899.99}'),
        alert(5, 5_400, measures='{"amount":null}'), alert(6, 6_100, measures='{"amount":1.00}'),
        alert(7, 6_200, measures='{"amount":1.00}'), alert(8, 6_200, measures='{"amount":2.00}', key="d"),
        alert(9, 6_150, severity="high", version=2), alert(10, 7_100, severity="high", version=2),
        alert(11, 7_200, severity="high", version=2), alert(12, 7_300, severity="critical", version=2),
    )  # fmt: skip
    sent, suppressed = divided(alerts, policies)
    assert sent == ["0001", "0003", "0009", "0008", "0011", "0012"]
    assert set(suppressed.values()) == {"suppressed"}
    assert Policies.from_json(json.loads(json.dumps(policies.to_json()))) == policies


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), st.integers(0, 3)), max_size=25), st.integers(1, 25))
def test_each_alert_that_is_greater_than_all_before_goes_out(
    given_alerts: list[tuple[int, int, int]], suppress_ms: int
) -> None:
    """The oracle looks at all alerts since the suppression began; the stream is cut anywhere and goes through JSON."""
    policies = Policies({("a", 1): (None, suppress_ms)}, escalations={("a", 1): "n"})
    rows = [
        alert(number, ms, measures=f'{{"n":{value}}}', severity=SEVERITIES[rank])
        for number, (ms, value, rank) in enumerate(sorted(given_alerts))
    ]
    memory: Fired = {}
    sent: list[str] = []
    for row in rows:
        result = suppress_alerts(table(row), policies, memory)
        memory = fired_from_json(json.loads(json.dumps(fired_json({**memory, **result.fired}))))
        sent += result.alerts["alert_id"].to_pylist()
    expected, last, most = [], -(10**9), -1
    rank_before = 0
    for row, (ms, value, rank) in zip(rows, sorted(given_alerts), strict=True):
        is_within = ms < last + suppress_ms
        if is_within and value <= most and rank <= rank_before:
            continue
        most = max(value, most) if is_within else value
        last, rank_before = ms, rank
        expected.append(row["alert_id"])
    assert sent == expected == divided(table(*rows), policies)[0]


def test_what_is_snoozed_or_in_shadow_takes_no_place_and_begins_no_time() -> None:
    versions: dict[tuple[str, int], tuple[str | None, int]] = {("a", 1): ("g", 1_000), ("b", 1): ("g", 0)}
    policies = Policies(versions, (SnoozeReport("a", None, 0, 5_500),))
    alerts = table(
        alert(1, 5_000), alert(2, 5_000, rule_id="b"), alert(3, 5_600, status="shadow"), alert(4, 5_700),
        alert(5, 5_800),
    )  # fmt: skip
    expected = {"0001": "snoozed", "0003": "shadow", "0005": "suppressed"}
    assert divided(alerts, policies) == (["0002", "0004"], expected)
    assert count_suppressed(suppress_alerts(alerts, policies, {})) == {
        "held[shadow@a]": 1, "held[snoozed@a]": 1, "held[suppressed@a]": 1, "alerts[a@1]": -3,
    }  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.sampled_from("ab"), st.sampled_from("cd"), st.sampled_from(["live", "shadow"])
        ),
        max_size=30,
    ),
    st.integers(0, 30),
    st.integers(0, 12),
)
def test_alerts_in_two_portions_are_divided_like_all_at_once(
    drawn: list[tuple[int, str, str, str]], cut_ms: int, suppress_ms: int
) -> None:
    policies = Policies({("a", 1): ("g", suppress_ms), ("b", 1): ("g", 5)}, (SnoozeReport("b", "c", 3, 9),))
    alerts = [alert(n, ms, rule_id=r, key=k, status=s) for n, (ms, r, k, s) in enumerate(drawn)]
    whole = suppress_alerts(table(*alerts), policies, {})
    first = suppress_alerts(table(*(a for a in alerts if a["match_end"] < cut_ms)), policies, {})
    memory = LastAlerts(fired_from_json(fired_json(first.fired)))
    assert memory.forget(cut_ms) == 0
    second = suppress_alerts(table(*(a for a in alerts if a["match_end"] >= cut_ms)), policies, memory.last)
    assert pa.concat_tables([first.alerts, second.alerts]).equals(whole.alerts)
    assert (*first.reasons, *second.reasons) == whole.reasons
    assert whole.alerts.num_rows + whole.suppressed.num_rows == len(alerts)
    memory.put(second.fired)
    memory.forget(10**6)
    assert memory.last == {}


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("cd")), max_size=30),
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
    st.lists(st.integers(1, 59), min_size=2, max_size=2, unique=True),
    st.sets(st.integers(1, 60)),
)
def test_versions_with_other_times_are_divided_alike_however_alerts_come(
    drawn: list[tuple[int, str]], times: list[int], starts: list[int], cuts: set[int]
) -> None:
    """A version suppresses for its own time, and no longer than the version that fired promised."""
    at_ms = [0, *sorted(starts)]
    alerts = [
        {**alert(n, ms, key=key), "version": 1 + sum(ms >= start for start in at_ms[1:])}
        for n, (ms, key) in enumerate(sorted(drawn))
    ]
    versions: dict[tuple[str, int], tuple[str | None, int]] = {
        ("a", 1 + n): (None, ms) for n, ms in enumerate(times) if ms
    }
    whole = suppress_alerts(table(*alerts), Policies(versions), {})
    memory, parts, reasons = LastAlerts(), [], list[str]()
    bounds = [0, *sorted(cuts), 61]
    for first, end in pairwise(bounds):
        # The versions of the micro-batch's alerts exist, and maybe already the next one.
        ends = [*at_ms[1:], 61]
        active = {
            identity: window
            for identity, window in versions.items()
            if first < ends[identity[1] - 1] and at_ms[identity[1] - 1] < end
        }
        part = suppress_alerts(
            table(*(a for a in alerts if first <= a["match_end"] < end)), Policies(active), memory.last
        )
        memory.put(part.fired)
        memory.forget(end)
        parts.append(part.alerts)
        reasons += part.reasons
    assert pa.concat_tables(parts).equals(whole.alerts)
    assert reasons == list(whole.reasons)
    last: dict[str, tuple[int, int]] = {}
    for one in alerts:
        suppress_ms, (before_ms, for_ms) = times[one["version"] - 1], last.get(one["key"], (0, 0))
        is_held = one["match_end"] < before_ms + min(suppress_ms, for_ms)
        assert (one["alert_id"] in whole.suppressed["alert_id"].to_pylist()) == is_held
        if suppress_ms and not is_held:
            last[one["key"]] = one["match_end"], suppress_ms


def test_policies_are_those_of_the_rulebook() -> None:
    book = new_book(upsert(1, suppress="2 min", exclusive="g"), upsert(1, "plain"))
    policies = Policies.of(book)
    assert policies == Policies({("r", 1): ("g", 120_000)}, keys={("r", 1): "card_id", ("plain", 1): "card_id"})
    assert Policies.from_json(policies.to_json()) == policies


# The memory of rules that suppress, against a dictionary that is searched as a whole.

RULES = "ab"
AT = st.tuples(st.sampled_from(RULES), st.sampled_from("cdefg"))
STEPS = st.lists(
    st.tuples(
        st.dictionaries(
            AT,
            st.tuples(st.integers(0, 60), st.sampled_from((5, 7, 30)), st.integers(0, 3), st.just(NO_MEASURE)),
            max_size=4,
        ),
        st.integers(0, 80),
    ),
    max_size=12,
)


def unexpired(last: Fired, before_ms: int) -> Fired:
    """Return the entries that may still suppress an alert at or after that time, by the definition."""
    return {key: times for key, times in last.items() if times[0] + times[1] > before_ms}


@given(STEPS)
def test_it_forgets_what_can_suppress_nothing_and_tells_what_has_changed(
    steps: list[tuple[Fired, int]],
) -> None:
    memory, expected, written = LastAlerts(), Fired(), Fired()
    for fired, before_ms in steps:
        memory.put(fired)
        assert memory.forget(before_ms) == 0
        expected = unexpired({**expected, **fired}, before_ms)
        assert memory.last == expected
        then = dict(written)
        changed = memory.changed()
        for key, before in changed.items():
            assert then.get(key) == before != memory.last.get(key)
            written.pop(key, None)
            if key in memory.last:
                written[key] = memory.last[key]
        assert written == expected, "who has written the changes has all of it"
        assert memory.changed() == {}


@given(STEPS)
def test_what_it_tells_undoes_it(steps: list[tuple[Fired, int]]) -> None:
    memory = LastAlerts()
    for fired, before_ms in steps:
        then = dict(memory.last)
        memory.put(fired)
        memory.forget(before_ms)
        after = dict(memory.last)
        memory.put(memory.changed())
        assert memory.last == then
        memory.changed()
        memory.put(fired)
        memory.forget(before_ms)
        assert memory.last == after
        memory.changed()


def test_what_is_over_at_once_goes_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_AT_A_TIME", 10)
    memory = LastAlerts({("a", str(number)): (0, 7, 0, NO_MEASURE) for number in range(35)})
    counts = []
    while memory.last:
        memory.forget(100)
        counts.append(len(memory.changed()))
    assert counts == [10, 10, 10, 5]


def test_at_its_bound_it_forgets_what_is_over_first_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "FIRED_MAX", 3)
    memory = LastAlerts()
    memory.put(
        {
            ("a", "c"): (4, 7, 0, NO_MEASURE),
            ("b", "c"): (1, 9, 0, NO_MEASURE),
            ("a", "d"): (5, 7, 0, NO_MEASURE),
            ("b", "d"): (3, 9, 0, NO_MEASURE),
        }
    )
    memory.put({("b", "c"): (20, 9, 0, NO_MEASURE)})
    assert memory.forget(0) == 1
    assert memory.last == {
        ("b", "c"): (20, 9, 0, NO_MEASURE),
        ("a", "d"): (5, 7, 0, NO_MEASURE),
        ("b", "d"): (3, 9, 0, NO_MEASURE),
    }


# The rulebook no longer names an erased key, and the key's old snooze does not count again.

UNTIL, LATER = "2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z"


def snooze(version: int, key: str | None, until: str = UNTIL) -> SnoozeRecord:
    return SnoozeRecord(id="r", version=version, until=until, key=key, by="Ada", reason=f"{key} is on a journey")


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_rulebook_without_a_key(is_signed: bool) -> None:
    book = new_book(trust=TRUST if is_signed else None)
    first, gone, other, every = upsert(1), snooze(1, "card-7"), snooze(1, "card-8"), snooze(1, None)
    pause = PauseRecord(id="r", version=1, by="Bob", reason="card-7 is his")
    for record in (first, gone, other, every, pause):
        assert book.apply(by_two(record) if is_signed else record, None).kind == "applied"
    stays = book.snoozes.report()
    assert forget_keys(book, {"card-7"}) == 1
    data = rulebook_bytes(book)
    assert b"card-7" not in data
    assert b"card-8 is on a journey" in data
    book = rulebook_from_bytes(data, SCHEMA, (("card_id",),))
    book.trust = TRUST if is_signed else None
    assert book.snoozes.report() == tuple(one for one in stays if one.key != "card-7")

    before = book.snoozes.report()
    again = book.apply(by_two(snooze(1, "card-7", LATER)) if is_signed else snooze(1, "card-7", LATER), None)
    assert again.kind == "refused", "an old version of what was erased"
    assert book.snoozes.report() == before
    assert book.apply(by_two(gone) if is_signed else gone, None).kind == "ignored", "the record that was erased"
    assert book.snoozes.report() == before
    second = snooze(2, "card-7")
    changes = book.ledger.head(second)
    assert changes.version == 1
    renewed = second.model_copy(update={"changes": changes})
    assert book.apply(by_two(renewed, gone) if is_signed else renewed, None).kind == "applied"
    assert book.apply(by_two(snooze(2, "card-8"), other) if is_signed else snooze(2, "card-8"), None).kind == "applied"


def test_what_names_no_key_stays() -> None:
    book = new_book(upsert(1), snooze(1, "card-8"), PauseRecord(id="r", version=1, by="Bob", reason="why"))
    before = rulebook_bytes(book)
    assert forget_keys(book, {"card-7"}) == 0
    assert rulebook_bytes(book) == before


@pytest.mark.parametrize("key", ["e", "card", "-7", "7", "ard-", "Ad", "journe"])
def test_a_key_that_is_a_part_of_words_takes_nothing_along(key: str) -> None:
    book = new_book(upsert(1), snooze(1, "card_7e"), PauseRecord(id="r", version=1, by="Bob", reason="card_7e is his"))
    before = rulebook_bytes(book)
    assert forget_keys(book, {key}) == 0
    assert rulebook_bytes(book) == before


@pytest.mark.parametrize("kind", ["unsigned", "signed", "without signers"])
def test_a_line_of_the_audit_without_its_texts_does_not_give_the_key_away(kind: str) -> None:
    """Guessing keys does not help: the line does not contain a hash of the record or the seal of the texts."""

    def line_about(key: str, owner: str) -> bytes:
        book = new_book(trust=None if kind == "without signers" else TRUST)
        book.is_audited = kind == "without signers"
        record = snooze(1, key)
        data = (by_two(record) if kind == "signed" else record).to_json()
        first = (with_nonce if kind == "without signers" else by_two)(upsert(1, owner=owner)).to_json()
        _, line = (line for line in apply_records(book, (first, data), None)[0] if is_audit(line))
        assert texts_of(line).keys() == {"of", "sent_by", "why", "changes", "record", "reason"}
        return line

    def left_of(line: bytes) -> dict[str, object]:
        values: dict[str, object] = orjson.loads(without_texts(line)[1])
        # The seal has a salt, whose source is gone with the texts.
        return {name: value for name, value in values.items() if name not in ("previous", "sealed", "hash")}

    one, two = line_about("card-7", "Ada"), line_about("card-8", "Ada")
    assert one != two
    assert left_of(one) == left_of(two)
    # Even the seal of a record without a signature does not follow from the record.
    sealed = {orjson.loads(line)["sealed"] for line in (one, two, line_about("card-7", "Bob"))}
    assert len(sealed) == 3


# A request to erase keys counts for exactly these keys, signed by two people of the job's signers.

GONE = ["card-17", '["card-17","m3"]']


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    assert not write_request(tmp_path / "request.json", GONE, TRUST, ADA)
    return tmp_path / "request.json"


def test_two_people_sign_the_keys(request_file: Path) -> None:
    with pytest.raises(UsageError, match="nobody has approved"):
        check_request(read_request(request_file), GONE, TRUST)
    for key in (ADA, ADA_AGAIN):
        with pytest.raises(UsageError, match="its author has approved"):
            write_request(request_file, GONE, TRUST, key)
    with pytest.raises(UsageError, match="none of the signers file"):
        write_request(request_file, GONE, TRUST, EVE)
    with pytest.raises(UsageError, match="signed for other keys"):
        write_request(request_file, GONE[:1], TRUST, BOB)
    assert write_request(request_file, reversed(GONE), TRUST, BOB)
    signed = read_request(request_file)
    check_request(signed, GONE, TRUST)
    assert all(key not in request_file.read_text() for key in GONE)
    assert signed.digests != digests_of(GONE, "0" * 32), "without the nonce nobody can try keys"
    for other in (GONE[:1], [*GONE, "c2"], ["card-1", GONE[1]], []):
        with pytest.raises(UsageError, match="signed for other keys"):
            check_request(signed, other, TRUST)


def narrowed(**changes: object) -> Trust:
    return replace(TRUST, signers=(replace(SIGNERS[0], **changes), *SIGNERS[1:]))  # type: ignore[arg-type]


@pytest.mark.parametrize("trust", [narrowed(may=("approve",)), narrowed(only=())])
def test_a_person_without_the_right_signs_none(request_file: Path, trust: Trust) -> None:
    write_request(request_file, GONE, TRUST, BOB)
    with pytest.raises(UsageError, match="may not sign"):
        check_request(read_request(request_file), GONE, trust)


@pytest.mark.parametrize("name", ["rule_set", "nonce", "digests", "author", "approver"])
def test_a_changed_request_is_refused(request_file: Path, name: str) -> None:
    write_request(request_file, GONE, TRUST, BOB)
    values = orjson.loads(request_file.read_bytes())
    other: dict[str, object] = {
        "rule_set": "others", "nonce": "0" * 32, "digests": digests_of(["c9"], values["nonce"]),
        "author": values["approver"], "approver": values["author"],
    }  # fmt: skip
    changed = ErasureRequest.model_validate_json(orjson.dumps({**values, name: other[name]}))
    with pytest.raises(UsageError):
        check_request(changed, GONE, TRUST)
    keys = ["c9"] if name == "digests" else GONE
    if name == "nonce":
        changed = changed.model_copy(update={"digests": digests_of(GONE, "0" * 32)})
    if name != "rule_set":
        with pytest.raises(UsageError, match=r"not what|its author has approved"):
            check_request(changed, keys, TRUST)


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(UsageError, match="no request to erase keys"):
        read_request(tmp_path / "request.json")


# Lists of card numbers and snoozes of cards take tokens; refusals show no number.

__all__ = ["keys"]
SOURCE = """
event payment { tx_id id  event_time time  card pan  shop string }
list cards: string
list shops: string
pattern listed(given: list of string = cards) by card {
  seq    x
  where  x: payment  card in given or shop in shops
}
"""


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("change", ["replace", "add"])
def test_numbers_are_refused_where_tokens_are_looked_up(change: str) -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    book = Rulebook(schema_of([record]), (("card",),))
    assert book.apply(record, None).kind == "applied"
    token = secret_keys()[0].token("pan", VISA.encode())

    def outcome(name: str, entries: list[str], version: int, how: str = change) -> tuple[str, str]:
        list_change = ListRecord(id=name, of="string", version=version, change=how, entries=entries)  # type: ignore[arg-type]
        lines, counters, _ = apply_records(book, (list_change.to_json(),), None)
        (kind,) = (name for name in counters if name in ("control_applied", "control_refused"))
        return kind, "".join(line.decode() for line in lines)

    kind, letter = outcome("cards", [token, VISA], 1)
    assert kind == "control_refused"
    assert "CEP320" in letter
    assert VISA not in letter
    assert outcome("cards", [token], 1) == ("control_applied", "")
    assert outcome("shops", [VISA], 1)[0] == "control_applied", "a shop may be called so"
    assert outcome("cards", [VISA], 2, "remove")[0] == "control_applied"


@pytest.mark.usefixtures("keys")
def test_a_rule_is_refused_if_its_list_has_numbers() -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    token = secret_keys()[0].token("pan", VISA.encode())
    for name, list_kind, entries, kind in (
        ("cards", "string", [token, VISA], "refused"), ("cards", "string", [token], "applied"),
        ("shops", "string", [VISA], "applied"), ("cards", "int", ["1"], "applied"),
    ):  # fmt: skip
        book = Rulebook(schema_of([record]), (("card",),))
        list_change = ListRecord(id=name, of=list_kind, version=1, change="replace", entries=[*entries])
        assert book.apply(list_change, None).kind == "applied"
        outcome = book.apply(record, None)
        assert outcome.kind == kind
        assert VISA not in outcome.full_reason
        if kind == "refused":
            book.apply(list_change.model_copy(update={"version": 2, "change": "remove", "entries": [VISA]}), None)
            assert book.apply(record, None).kind == "applied"


@pytest.mark.usefixtures("keys")
def test_numbers_in_files_and_in_place_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = secret_keys()[0].token("pan", VISA.encode())
    folder = tmp_path / "rules"
    folder.mkdir()
    path = tmp_path / "p.cep"
    (folder / "r.toml").write_text(rule_text("r", "../p.cep", pattern="listed"))
    for entries, is_right in (([VISA, token], False), ([token], True)):
        (tmp_path / "cards.txt").write_text("\n".join(entries))
        for listed in ('list cards: string from "cards.txt"', f"list cards: string = {orjson.dumps(entries).decode()}"):
            path.write_text(SOURCE.replace("list cards: string", listed))
            assert main(["check", str(path)]) == (0 if is_right else 1)
            lists, problems = declared_lists(folder)
            assert (len(lists), len(problems)) == ((1, 0) if is_right else (0, 1))
            output = "".join([*capsys.readouterr(), *problems])
            assert VISA not in output
            assert ("CEP320" in output) != is_right
        params = {"given": entries}
        record = upsert(1, source=SOURCE, pattern="listed", message="{key}", params=params)
        outcome = Rulebook(schema_of([record]), (("card",),)).apply(record, None)
        assert outcome.kind == ("applied" if is_right else "refused")
        assert VISA not in outcome.full_reason
    # A list from the start of the job is named by its hash; its entries count as well.
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    store = ListStore()
    content = Content("string").changed("replace", keys_of([VISA], "string")[0])
    list_change = list_record(GivenList("cards", "string", pa.array([VISA]), content, 0), store)
    book = Rulebook(schema_of([record]), (("card",),), store)
    assert book.apply(record, None).kind == "applied"
    assert book.apply(list_change, None, is_given=True).kind == "refused"


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("by", ["card", "(shop, card)"])
def test_a_snooze_of_a_card_takes_its_token(by: str) -> None:
    record = upsert(1, source=SOURCE.replace("by card", f"by {by}"), pattern="listed", message="{key}")
    token = secret_keys()[0].token("pan", VISA.encode())
    book = Rulebook(schema_of([record]), None)
    book.trust = TRUST
    assert book.apply(by_two(record), None).kind == "applied"
    for card, is_right in ((VISA, False), (token, True)):
        key = card if by == "card" else key_of((VISA, card))
        snooze = SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", key=key, by="Ada")
        reason = refusal_of_values(snooze, [upsert(1, "other"), record])
        assert (reason is None) == is_right
        lines, counters, _ = apply_records(book, (by_two(snooze).to_json(),), None)
        assert ("control_applied" in counters) == is_right
        unsigned, _, _ = apply_records(book, (snooze.model_copy(update={"version": 2}).to_json(),), None)
        output = "".join(line.decode() for line in (*lines, *unsigned)) + str(reason)
        assert is_right or VISA not in output
        assert any(is_audit(line) for line in lines)
        assert any(is_audit(line) for line in unsigned)


@pytest.mark.usefixtures("keys")
def test_a_verb_says_so_before_it_sends() -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    entries = [ListRecord(id=name, of="string", version=1, change="add", entries=[VISA]) for name in ("cards", "shops")]
    cards, shops = (refusal_of_values(change, [upsert(1, "other"), record]) for change in entries)
    assert shops is None
    assert cards is not None
    assert "1 of its entries are no tokens" in cards
    assert VISA not in cards
