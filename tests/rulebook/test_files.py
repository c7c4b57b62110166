"""Rule files: records, git, the lock, signed changes, the hash of a meaning, and declarations of several rules."""

import itertools
import random
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from cep.api.replay import GivenRules
from cep.base.errors import UsageError
from cep.base.exits import Exit
from cep.base.schema import Kind, Schema
from cep.cli.main import main
from cep.lang.format.file import format_text
from cep.lang.load import bundle_checked, bundle_source, load_text
from cep.lang.parse import lexer
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, PauseRecord, RetireRecord, RollbackRecord, SnoozeRecord, UpsertRecord
from cep.rulebook import files
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.lock import LOCK_FILE, locked, problems_of_lock, read_lock, with_version, write_lock
from cep.rulebook.meaning import content_hash, earlier_hash, pattern_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.trust import digest_of
from tests.columnar.protected import VISA, keys
from tests.lang.generate import random_file
from tests.output_of import OutputOf
from tests.rule_files import copy_rules, rule_text
from tests.rulebook.people import by_two, upsert_by_two
from tests.rulebook.records import SOURCE, upsert

# Rule files to records, and the rules of this repository.

ROOT = Path(__file__).parents[2]
RULE = rule_text("good", "patterns.cep", pattern="large_after_small")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "patterns.cep").write_text(SOURCE)
    (tmp_path / "good.toml").write_text(RULE)
    return tmp_path


def test_a_good_file_becomes_a_record(folder: Path) -> None:
    (record,), problems = files.read_rules(folder)
    assert problems == []
    assert (record.id, record.version) == ("good", 1)
    assert "pattern large_after_small" in record.source


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("other.toml", RULE, "$.id: is `good`, but the file is named `other.toml`"),
        ("lost.toml", RULE.replace("good", "lost").replace("patterns.cep", "gone.cep"), "$.file: cannot bundle"),
        ("broken.toml", "id = ", "$: not TOML"),
        ("extra.toml", RULE.replace("owner", "ownr"), "$.ownr: no such name here; did you mean `owner`?"),
        ("large.toml", "#" * 100_000, "100000 bytes are over the limit of 65536"),
    ],
)
def test_a_bad_file_is_a_problem_and_the_good_ones_stay(folder: Path, name: str, text: str, expected: str) -> None:
    (folder / name).write_text(text)
    records, problems = files.read_rules(folder)
    assert [record.id for record in records] == ["good"]
    assert any(expected in problem for problem in problems)
    assert all(problem.startswith(f"{folder / name}: $") for problem in problems)


@pytest.mark.parametrize("name", ["Blocked", "_blocked", "b" * 65])
def test_a_name_that_no_record_can_have_is_a_problem(name: str, folder: Path) -> None:
    """Such a list, and such a pattern, ended `cep check` and `cep.match` as if by a bug."""
    text = (folder / "patterns.cep").read_text()
    (folder / "patterns.cep").write_text(f'{text}\nlist {name}: string = ["a"]\n')
    lists, [problem] = files.declared_lists(folder)
    assert lists == []
    assert f"no rule can name the list `{name[:64]}`" in problem
    with pytest.raises(UsageError, match=f"no rule can name the pattern `{name[:64]}`"):
        GivenRules.of_patterns(SOURCE.replace("large_after_small", name), "a text")


def test_an_empty_folder_is_a_problem(tmp_path: Path) -> None:
    assert files.read_rules(tmp_path) == ([], [f"{tmp_path}: no rule files (*.toml) here"])


def test_the_rules_of_this_repository_are_in_force() -> None:
    records, problems = files.read_rules(ROOT / "rules")
    assert problems == []
    schema = load_text(bundle_source(ROOT / "patterns" / "events.cep"), "events.cep").schema
    book = Rulebook(schema, (("card_id",), ("account_id",)))
    outcomes = {record.id: book.apply(record, None) for record in records}
    assert {rule_id: o.reason for rule_id, o in outcomes.items() if o.kind != "applied"} == {}
    assert [rule.rule_id for rule in book.deployed()] == [
        "impossible_travel",
        "card_testing",
        "dormant_then_large",
        "small_then_large",
        "rising_amounts",
    ]


def test_the_history_of_a_control_topic(folder: Path) -> None:
    (record,), _ = files.read_rules(folder)
    retired = RetireRecord(id="good", version=2)
    path = folder / "control.jsonl"
    with_blank = retired.to_json().replace(b",", b",\r", 1)  # a blank of JSON, as for a job that reads the file
    path.write_bytes(b"\n".join([record.to_json() + b"\r", b"", b'{"kind": "upsrt"}', with_blank, b""]))
    records, problems = files.read_control(path)
    assert records == [record, retired]
    assert problems
    assert all(problem.startswith(f"{path}:3: $") for problem in problems)
    with pytest.raises(UsageError, match="cannot be read"):
        files.read_control(folder / "gone.jsonl")


def test_a_pattern_file_is_read_once_however_many_rules_name_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to load rules grows with their text: each pass over a text happens once for all rules of a file."""
    for number in range(5):
        (folder / f"r{number}.toml").write_text(RULE.replace('"good"', f'"r{number}"'))
    source = SOURCE + "# read once\n"  # other tests have not cached it
    (folder / "patterns.cep").write_text(source)
    lexed = Mock(side_effect=lexer._Lexer)
    monkeypatch.setattr(lexer, "_Lexer", lexed)
    records, problems = files.read_rules(folder)
    assert problems == []
    files.read_lists(folder, ListStore())
    assert len(deploy(records).rulebook.deployed()) == 6
    assert lexed.call_count == 2, "to bundle and check it, and to spell its meaning"


def test_a_broken_pattern_file_is_read_once_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "patterns.cep").write_text(SOURCE + "pattern {")
    (folder / "second.toml").write_text(RULE.replace('"good"', '"second"'))
    bundled = Mock(side_effect=bundle_checked)
    monkeypatch.setattr(files, "bundle_checked", bundled)
    records, problems = files.read_rules(folder)
    assert records == []
    assert [problem.split(": ")[1] for problem in problems] == ["$.file", "$.file"]
    assert bundled.call_count == 1


# Rules as they were in git.


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b", *arguments], check=True)


def test_a_rule_as_it_was(tmp_path: Path) -> None:
    path = copy_rules(tmp_path) / "card_testing.toml"
    git(tmp_path, "init", "-q")
    for version, severity in ((1, "high"), (2, "low")):
        text = (ROOT / "rules" / "card_testing.toml").read_text()
        path.write_text(text.replace("version = 1", f"version = {version}").replace('"high"', f'"{severity}"'))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", f"version {version}")
    commits = files.history(tmp_path / "rules", "card_testing")
    assert [line.split(": ")[1] for line in commits] == ["version 2", "version 1"]
    records = [files.at_commit(tmp_path / "rules", line.split(" ")[0], "card_testing") for line in commits]
    assert [(r.version, r.severity, "pattern card_testing" in r.source) for r in records if r is not None] == [
        (2, "low", True), (1, "high", True),
    ]  # fmt: skip


def test_without_git_there_is_no_history(tmp_path: Path) -> None:
    assert files.history(tmp_path, "card_testing") == []
    assert files.at_commit(tmp_path, "HEAD", "card_testing") is None


# rules.lock: accepted records, contradictions, and their repair.


def test_what_is_locked_stays(tmp_path: Path) -> None:
    first, other = upsert(1, "a"), upsert(4, "b")
    lock, problems = locked([first, other], {})
    assert problems == []
    write_lock(tmp_path, lock)
    assert read_lock(tmp_path) == lock
    assert problems_of_lock([first, other], lock) == []
    again, _ = locked([upsert(2, "a", severity="high")], lock)
    assert set(again["a"]) == {1, 2}
    assert again["b"] == lock["b"]


@pytest.mark.parametrize(
    ("version", "severity", "message"),
    [
        (3, "high", "a: it means something else than version 3 did when it was locked; run `cep rules bump a`"),
        (2, "low", "a: version 2 is below 3, which is locked: a version never goes back; run `cep rules bump a`"),
        (4, "low", "a: version 4 is not locked; run `cep rules lock`"),
    ],
)
def test_what_contradicts_it_names_the_command_that_mends_it(version: int, severity: str, message: str) -> None:
    lock, _ = locked([upsert(3, "a")], {})
    changed = upsert(version, "a", severity=severity)
    assert [str(problem) for problem in problems_of_lock([changed], lock)] == [message]


def test_a_changed_meaning_is_not_locked_over() -> None:
    lock, _ = locked([upsert(3, "a")], {})
    after, problems = locked([upsert(3, "a", severity="high"), upsert(1, "new")], lock)
    assert after["a"] == lock["a"]
    assert set(after) == {"a", "new"}
    assert len(problems) == 1


@pytest.mark.parametrize("text", ["a = 1", '[a]\nx = "y"', '[a]\n1 = "short"', "[["])
def test_a_file_that_is_no_lock_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_FILE).write_text(text)
    with pytest.raises(UsageError, match="restore it from version control"):
        read_lock(tmp_path)


def test_only_the_version_of_a_file_changes() -> None:
    text = 'id = "a"\nversion  = 12 # as agreed\n\n[params]\nversion = 3\n'
    assert with_version(text, 13) == 'id = "a"\nversion  = 13 # as agreed\n\n[params]\nversion = 3\n'
    with pytest.raises(ValueError, match="no line"):
        with_version("[params]\nversion = 3\n", 13)


# Files of signed changes.


def test_each_change_has_a_file(tmp_path: Path) -> None:
    records = [
        by_two(upsert(1)),
        by_two(PauseRecord(id="r", version=1)),
        by_two(SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", by="a")),
        by_two(SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", by="a", key="../../etc")),
        by_two(ListRecord(id="blocked", of="decimal(2)", version=1, change="replace", entries=["1.00"])),
    ]
    paths = [files.change_path(tmp_path, record) for record in records]
    assert len(set(paths)) == len(paths)
    for path, record in zip(paths, records, strict=True):
        assert path.parent == tmp_path / "signed"
        files.write_change(path, [record])
        assert files.read_change(path) == [record]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"kind":"heartbeat","event_time":"2030-01-01T00:00:00Z"}', b"\xff"])
def test_what_is_no_change_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.1.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"r\.1\.json"):
        files.read_change(tmp_path / "r.1.json")
    with pytest.raises(UsageError, match="cannot be read"):
        files.read_change(tmp_path / "gone.json")


def test_rules_come_with_their_signatures(tmp_path: Path) -> None:
    folder = copy_rules(tmp_path)
    records, _ = files.read_rules(folder)
    signed = upsert_by_two(records[0])
    files.write_change(files.change_path(folder, signed), [signed])
    assert files.with_signatures(folder, records) == [signed, *records[1:]]
    # Another layout of the text is the same change; another meaning, or a damaged file, is not.
    laid_out = records[0].model_copy(update={"source": records[0].source + "\n// more\n"})
    assert files.with_signatures(folder, [laid_out]) in ([signed], [laid_out])
    other = records[0].model_copy(update={"severity": "low"})
    assert content_hash(other) != content_hash(signed)
    assert files.with_signatures(folder, [other]) == [other]
    files.change_path(folder, signed).write_bytes(b"{")
    assert files.with_signatures(folder, records) == records


def test_the_version_before_is_locked_or_signed(tmp_path: Path) -> None:
    assert files.version_before(tmp_path, upsert(1)) == (0, "")
    (tmp_path / "rules.lock").write_text(f'[r]\n1 = "{"a" * 64}"\n4 = "{"b" * 64}"\n')
    assert files.version_before(tmp_path, upsert(4)) == (1, "a" * 64)
    back = by_two(RollbackRecord(id="r", version=3, to_version=1, rule=upsert(1)))
    files.write_change(files.change_path(tmp_path, back), [back])
    assert files.version_before(tmp_path, upsert(4)) == (3, digest_of(upsert(1)))
    pauses = [PauseRecord(id="r", version=1), PauseRecord(id="s", version=2)]
    assert files.last_of(pauses, PauseRecord(id="r", version=3)) == (1, digest_of(pauses[0]))


# The hash of a version's meaning: the changes that affect it, and the ones that do not.


PATTERNS = [
    pytest.param(path, name, id=name)
    for path in sorted((ROOT / "patterns").rglob("*.cep"))
    for name in load_text(bundle_source(path), "t").patterns
]


@pytest.mark.parametrize(("path", "name"), PATTERNS)
def test_formatting_comments_and_tests_do_not_change_it(path: Path, name: str) -> None:
    source = bundle_source(path)
    wide = "# a comment\n" + source.replace("\n", "\n\n  ").replace("{", "{ # more\n")
    assert pattern_hash(wide, name) == pattern_hash(source, name)
    formatted, _ = format_text(wide, "t")
    assert formatted is not None
    assert pattern_hash(formatted, name) == pattern_hash(source, name)


def test_other_patterns_of_the_file_do_not_change_it() -> None:
    other = SOURCE + SOURCE[SOURCE.index("pattern") :].replace("large_after_small", "another")
    assert pattern_hash(other, "large_after_small") == pattern_hash(SOURCE, "large_after_small")
    assert pattern_hash(other, "another") != pattern_hash(SOURCE, "large_after_small")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("more", ["event more { more_id id  event_time time  KEY string }\n", "list more: string\n"])
def test_a_pattern_has_the_same_hash_if_it_is_the_same_beside_more(seed: int, more: str) -> None:
    source = random_file(seed)
    for key in ("k", "other"):
        longer = more.replace("KEY", key) + source
        before, after = load_text(source), load_text(longer)
        assert before.ok
        for name, pattern in before.patterns.items():
            is_same = pattern == after.patterns[name]
            assert (pattern_hash(longer, name) == pattern_hash(source, name)) is is_same


def test_another_event_type_changes_a_pattern_over_all_alone() -> None:
    over_all = SOURCE.rstrip().removesuffix("}") + "  over all\n}\n"
    login = "event login { login_id id  event_time time  KEY string }\n"
    name = "large_after_small"
    for source, key, is_same in (
        (SOURCE, "card_id", True),
        (over_all, "account_id", True),
        (over_all, "card_id", False),
    ):
        longer = login.replace("KEY", key) + source
        before, after = load_text(source), load_text(longer)
        assert after.ok, after.diagnostics
        assert (after.patterns[name].event_types == before.patterns[name].event_types) is is_same
        assert (pattern_hash(longer, name) == pattern_hash(source, name)) is is_same


@pytest.mark.parametrize("until", ["amount > 9.00", "not (amount < 9.00)", "amount is null"])
def test_what_until_reads_of_an_event_type_that_is_not_named_changes_it(until: str) -> None:
    """An event type without the field reads as null: `until` may hold for it, or not."""
    body = SOURCE.rstrip().removesuffix("}").replace("seq    small", f"seq    small{{2,}} until ({until})")
    login = "event login { login_id id  event_time time  card_id string  FIELD }\n"
    name = "large_after_small"
    texts = [login.replace("FIELD", field) + body + "over all\n}\n" for field in ("", "amount decimal(2)")]
    before, after = (load_text(text).patterns[name] for text in texts)
    assert before != after
    assert pattern_hash(texts[0], name) != pattern_hash(texts[1], name)


@pytest.mark.parametrize(
    "change",
    [
        {"source": SOURCE.replace("1.00", "1.01")},
        {"source": SOURCE.replace("card_id     string", "card_id     string?")},
        {"params": {"large": 501}},
        {"severity": "high"},
        {"message": "n"},
        {"priority": 1},
        {"status": "shadow"},
        {"suppress": "1 h"},
        {"exclusive": "cards"},
    ],
)
def test_what_decides_the_alerts_changes_it(change: dict[str, Any]) -> None:
    assert content_hash(upsert(1, **change)) != content_hash(upsert(1))


def test_who_owns_it_and_when_it_starts_do_not() -> None:
    base = upsert(1, params={"large": 500, "window": "10 min"})
    same = upsert(9, "r", 1_000, owner="else", runbook="r", params={"window": "10 min", "large": 500.0}, author="a")
    assert content_hash(base) == content_hash(same)


def test_numbers_of_repetitions_count_and_last_commas_do_not() -> None:
    texts = {
        repetition: SOURCE.replace("seq    small", f"seq    small{repetition}")
        for repetition in ("{3}", "{3,}", "{3,3}", "{3,4}", "{0,3}", "{,3}", "+", "*", "?", "")
    }
    hashes = {repetition: pattern_hash(text, "large_after_small") for repetition, text in texts.items()}
    assert hashes.pop("{3}") == hashes.pop("{3,3}"), "they match the same"
    assert len(set(hashes.values())) == len(hashes)
    commented = texts["{3,}"].replace("{3,}", "{ # three\n 3 # or more\n , }")
    assert pattern_hash(commented, "large_after_small") == hashes["{3,}"]
    with_call = SOURCE.replace("amount < 1.00", "count(payment over 1 h) > 1")
    longer = with_call.replace("1 h)", "1 h,\n)")
    assert load_text(longer).ok
    assert pattern_hash(longer, "large_after_small") == pattern_hash(with_call, "large_after_small")


def test_what_a_definition_says_counts_where_it_is_used() -> None:
    text = "define tiny(x) = x < 1.00\ndefine other(x) = x < 2.00\n" + SOURCE.replace("amount < 1.00", "tiny(amount)")
    assert pattern_hash(text, "large_after_small") != pattern_hash(text.replace("1.00", "3.00", 1), "large_after_small")
    assert pattern_hash(text, "large_after_small") == pattern_hash(text.replace("2.00", "3.00"), "large_after_small")


@pytest.mark.parametrize(
    ("declarations", "condition", "name"),
    [
        ('list odd = ["7"]\ndefine odd = card_id in odd\n', "odd", "hit"),
        ('define odd = card_id in odd and amount > 7\nlist odd = ["a"]\n', "odd", "hit"),
        ("define odd = event in [a, b] and amount > 7\n", "odd", "hit"),
        ("define odd = not test and amount > 7\n", "odd", "hit"),
        ("", "amount > 7", "found"),  # the event type `found` stands after the pattern
    ],
)
def test_a_definition_or_pattern_counts_whatever_its_name_and_fields(
    declarations: str, condition: str, name: str
) -> None:
    text = (
        "event payment { tx_id id  event_time time  card_id string  amount int  event enum(a, b)  test bool }\n"
        f"{declarations}pattern {name} by card_id {{ seq x where x: payment {condition} emit card_id = x.card_id }}\n"
        "event found { found_id id  event_time time  card_id string }\n"
    )
    records = [upsert(1, source=one, pattern=name, message="m") for one in (text, text.replace("7", "8"))]
    before, after = (load_text(record.source).patterns[name] for record in records)
    assert before != after
    assert content_hash(records[0]) != content_hash(records[1])
    # Locks, runs and signatures of 0.3.0 have the earlier hash.
    assert earlier_hash(records[0]) == earlier_hash(records[1]) != content_hash(records[0])


@pytest.mark.parametrize("name", ["test", "event", "list", "pattern", "define", "import"])
def test_what_begins_declarations_may_be_a_name(name: str) -> None:
    """Such a pattern raised IndexError in `cep.load`, and ended a job that received one."""
    source = SOURCE.replace("large_after_small", name)
    meant = content_hash(upsert(1, source=source, pattern=name))
    assert meant == content_hash(upsert(1, source=f"define other(x) = x < 2.00\n{source}", pattern=name))
    assert meant != content_hash(upsert(1, source=source.replace("1.00", "3.00"), pattern=name))
    assert meant not in {content_hash(upsert(1, source=SOURCE)), content_hash(upsert(1, source=source))}


@pytest.mark.parametrize("source", ["list x", "list x\n", "list x\nlist y\n", "event x\n", "define x\n"])
def test_a_declaration_that_breaks_off_has_a_meaning(source: str) -> None:
    """Such a record is refused, and the refusal names the hash. A truncated list raised IndexError."""
    assert content_hash(upsert(1, source=source)) != content_hash(upsert(1))
    assert content_hash(upsert(1, source=f"{source} {SOURCE}")) == content_hash(upsert(1))


@pytest.mark.parametrize("source", ["x", "", "}", "test", "pattern", '"', "event event e { }", "list list"])
def test_a_text_without_declarations_has_a_meaning(source: str) -> None:
    """Such a record is refused with a dead letter, which names the hash."""
    assert content_hash(upsert(1, source=source or " ")) != content_hash(upsert(1))


# The declarations of several rules join to one schema: each rule keeps its events and its protection.

__all__ = ["keys"]
TIME = "2026-03-01T10:00:00Z"
IDENTITY = "tx_id id  event_time time  card string"


def rule(name: str, fields: str, body: str = "amount > 5", before: str = "", **changes: object) -> UpsertRecord:
    """Return a rule that fires on each payment for which `body` holds, and its declaration of payments."""
    source = f"event payment {{ {fields} }}\n{before}\npattern p by card {{ seq a where a: payment {body} }}"
    record = UpsertRecord(
        id=name, version=1, pattern="p", status="live", severity="low", owner="o", message="{key}", source=source
    )
    return record.model_copy(update=changes)


def types(schema: Schema) -> dict[str, str]:
    return {name: str(type_) for name, type_ in schema.event_types[0].types.items()}


def write(tmp_path: Path, records: list[UpsertRecord], events: list[dict[str, object]]) -> list[str]:
    """Write the files, and return the arguments that name them."""
    folder = tmp_path / "rules"
    folder.mkdir()
    for record in records:
        (folder / f"{record.id}.cep").write_text(record.source)
        fields = record.model_dump(exclude={"source", "kind"}, exclude_none=True)
        fields = {name: value for name, value in fields.items() if value != {}}
        lines = [f"{name} = {orjson.dumps(value).decode()}" for name, value in fields.items()]
        (folder / f"{record.id}.toml").write_text("\n".join([*lines, f'file = "{record.id}.cep"']))
    (tmp_path / "events.jsonl").write_bytes(
        b"\n".join(
            orjson.dumps({"tx_id": f"t{n}", "event_time": TIME, "card": "c", **event}) for n, event in enumerate(events)
        )
    )
    return ["--rules", str(folder), "--events", str(tmp_path / "events.jsonl")]


def fired(tmp_path: Path, records: list[UpsertRecord], events: list[dict[str, object]]) -> list[tuple[str, str]]:
    """Return the rules that fire in a replay, each with its key."""
    main(["replay", *write(tmp_path, records, events), "--out", str(tmp_path / "out.jsonl"), "--rejected-max", "1"])
    alerts = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    return sorted((alert["rule_id"], alert["key"]) for alert in alerts)


# ------------------------------------------------------------------------------------------- fields that are required


def test_a_field_is_required_where_all_rules_require_it() -> None:
    """Compare with the definition, for all orders of three drawn declarations."""
    chosen = random.Random(7)
    for _ in range(30):
        texts = [{name: chosen.choice(["int", "int?"]) for name in "abcd" if chosen.random() < 0.7} for _ in range(3)]
        for order in itertools.permutations(texts):
            records = [
                rule(f"r{n}", " ".join([IDENTITY, "amount int", *(f"{k} {v}" for k, v in text.items())]))
                for n, text in enumerate(order)
            ]
            deployment = deploy(records)
            assert deployment.set_aside == ()
            required = {n for n in "abcd" if all(text.get(n) == "int" for text in texts)}
            declared = types(deployment.schema)
            assert {n for n in "abcd" if declared.get(n) == "int"} == required
            assert {n for n in "abcd" if n in declared} == {n for text in texts for n in text}


@pytest.mark.parametrize("foo", ["y", None])
def test_a_field_of_one_rule_takes_no_event_from_another(tmp_path: Path, foo: str | None) -> None:
    plain, wide = rule("plain", f"{IDENTITY} amount int"), rule("aaa", f"{IDENTITY} amount int foo string")
    reads = rule("bbb", f"{IDENTITY} amount int foo string", 'foo != "x"')
    events: list[dict[str, object]] = [{"amount": 9}, {"amount": 9, **({"foo": foo} if foo else {})}, {"amount": 1}]
    expected = [("aaa", "c")] * 2 + [("bbb", "c")] * (foo is not None) + [("plain", "c")] * 2
    assert fired(tmp_path, [wide, reads, plain], events) == expected


def test_a_rule_that_produces_events_stays_when_a_newer_one_lacks_its_field() -> None:
    flags = "event flag { flag_id id  event_time time  card string  amount int }"
    body = "\nemit card = a.card, amount = a.amount produce flag"
    old = rule("old", f"{IDENTITY} amount int", body, flags)
    deployment = deploy([old, rule("new", IDENTITY, "")])
    assert deployment.set_aside == ()
    flag = deployment.schema.event_type("flag")
    assert flag is not None
    assert {n: str(t) for n, t in flag.types.items()} == {
        "flag_id": "id", "event_time": "time", "card": "string?", "amount": "int?",
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------- protected fields


@pytest.mark.parametrize("protection", ["pan", "string sensitive"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("other", ["string", "string?", "int", "pan", "string sensitive"])
def test_a_protected_field_is_protected_for_all(protection: str, other: str, is_first: bool) -> None:
    plain = rule("aaa", f"tx_id id event_time time card {other}\n amount int")
    protected = rule("zzz", f"tx_id id event_time time card {protection}\n amount int")
    deployment = deploy([protected, plain] if is_first else [plain, protected])
    (card,) = [t for n, t in deployment.schema.protected if n == "card"]
    expected = [protection] if "pan" not in other and "sensitive" not in other else [protection, other]
    assert str(card) in expected
    assert deployment.set_aside == ()
    for compiled in deployment.rulebook.deployed():
        assert compiled.pattern.key == ("card",)


@pytest.mark.usefixtures("keys")
def test_no_alert_has_a_card_number_because_another_rule_declares_a_text(tmp_path: Path) -> None:
    plain = rule("aaa", f"{IDENTITY} amount int")
    protected = rule("zzz", "tx_id id event_time time card pan amount int")
    alerts = fired(tmp_path, [plain, protected], [{"card": VISA, "amount": 9}])
    assert [name for name, _ in alerts] == ["aaa", "zzz"]
    assert len({key for _, key in alerts}) == 1
    assert VISA not in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize("body", [f'card == "{VISA}"', 'card in ["a"]', 'starts_with(card, "41")'])
def test_a_rule_that_reads_the_value_itself_is_set_aside(body: str) -> None:
    deployment = deploy(
        [rule("aaa", f"{IDENTITY} amount int", body), rule("zzz", IDENTITY.replace("string", "pan"), "")]
    )
    (aside,) = deployment.set_aside
    assert aside.rule_id == "aaa"
    assert "the job protects `card`" in aside.reason
    assert aside.diagnostics


def test_the_fields_that_identify_an_event_keep_their_types() -> None:
    other = "number id  event_time time  tx_id pan  card string  amount int"
    deployment = deploy([rule("old", f"{IDENTITY} amount int"), rule("new", other)])
    assert deployment.schema.event_types[0].id_field == "tx_id"
    assert deployment.schema.event_types[0].types["tx_id"].kind is Kind.ID
    assert [aside.rule_id for aside in deployment.set_aside] == ["new"]


# -------------------------------------------------------------------------------------------------------------- clashes


def test_in_a_clash_the_later_rule_is_refused() -> None:
    for first, second in itertools.permutations(["int", "string", "decimal(2)", "enum(a, b)"], 2):
        deployment = deploy([rule("b", f"{IDENTITY} x {first}", ""), rule("a", f"{IDENTITY} x {second}", "")])
        assert [aside.rule_id for aside in deployment.set_aside] == ["a"]
        assert types(deployment.schema)["x"] == first


def test_the_oldest_rule_decides_the_order_of_events() -> None:
    ordered = f"{IDENTITY} n int"
    first, second = rule("b", ordered, ""), rule("a", ordered, "")
    second = second.model_copy(update={"source": second.source.replace("n int }", "n int } order by n")})
    deployment: Deployment = deploy([first, second])
    assert deployment.schema.event_types[0].order_field == ""
    assert [aside.rule_id for aside in deployment.set_aside] == ["a"]


# ------------------------------------------------------------------------------------------------------ starts of a job


@pytest.mark.parametrize(("status", "is_refused"), [("live", True), ("shadow", False), ("draft", False)])
def test_a_job_does_not_start_without_a_live_rule(
    tmp_path: Path, output_of: OutputOf, status: str, is_refused: bool
) -> None:
    records = [rule("a", f"{IDENTITY} x int", ""), rule("b", f"{IDENTITY} x string", "", status=status)]
    words = [*write(tmp_path, records, [{"x": 1}]), "--available-now"]
    output = output_of(main(["run", *words]), Exit.USAGE if is_refused else 1).err
    assert ("--start-incomplete" in output) == is_refused
    assert "`payment.x` is string in the rule and int in the job" in output
    assert "b version 1 is set aside" in output_of(main(["run", *words, "--start-incomplete"]), 1).err


def test_a_spark_job_does_not_start_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = write(tmp_path, [rule("a", f"{IDENTITY} x int", ""), rule("b", f"{IDENTITY} x string", "")], [{"x": 1}])
    assert main(["live", *words, "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    assert "live rules are set aside: b version 1" in capsys.readouterr().err
    (tmp_path / "rules" / "b.toml").write_text("nothing")
    assert main(["live", *words, "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    assert "1 problem(s) in rule files" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ age of versions


def test_the_oldest_version_comes_first_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [rule("b", f"{IDENTITY} x int", "")], [{}])
    folder = tmp_path / "rules"
    lock = ["rules", "lock", "--rules", str(folder)]
    assert main(lock) == 0
    for name, type_ in (("a", "string"), ("c", "string")):
        (folder / f"{name}.cep").write_text(rule(name, f"{IDENTITY} x {type_}", "").source)
        file = (folder / "b.toml").read_text().replace('"b"', f'"{name}"').replace("b.cep", f"{name}.cep")
        (folder / f"{name}.toml").write_text(file)

    def order() -> list[str]:
        return [record.id for record in files.read_rules(folder)[0]]

    assert order() == ["b", "a", "c"], "a version that is not locked is the newest"
    assert [aside.rule_id for aside in deploy(files.read_rules(folder)[0]).set_aside] == ["a", "c"]
    assert main(lock) == 0
    assert order() == ["b", "a", "c"]
    assert main(["rules", "bump", "b", "--rules", str(folder)]) == 0
    assert order() == ["a", "c", "b"], "its new version is the newest"
    assert list(read_lock(folder)) == ["a", "c", "b"]
    (folder / "rules.lock").write_bytes(b"\xff")
    assert order() == ["a", "b", "c"], "a file that is no lock says nothing"
