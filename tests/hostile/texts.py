"""Patterns, rules, settings, control records and lists, as an attacker may propose them."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from cep.base.errors import CepError
from cep.lang.explain.render import render_text
from cep.lang.format.file import format_text
from cep.lang.ir import PatternIR
from cep.lang.lint.run import lint
from cep.lang.load import Checked, bundle_source, load_files, load_text
from cep.lists.entries import keys_of, read_entries
from cep.lists.store import Content
from cep.model import rule as control
from cep.model.settings import SECTIONS, default_file, read_settings
from cep.nfa.compile import compilable
from cep.nfa.lists import given_lists
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.lock import read_lock
from cep.rulebook.meaning import pattern_hash
from cep.rulebook.rulebook import Rulebook
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, Kind
from tests.hostile.mutate import TOML_TRICKS, broken_bytes, broken_source, broken_text, broken_value, deep
from tests.lang.generate import random_file
from tests.tidy.source import ROOT

_SMALL_PATTERNS = 60  # number of generated files among the patterns


def patterns(folder: Path) -> Feed:
    """Pattern files: a text that is checked, compiled, linted and formatted.

    An accepted pattern equals the unbroken one, or has another hash: then the lock, the diff and the alerts show it.
    """
    texts = [random_file(seed) for seed in range(_SMALL_PATTERNS)]
    texts += [bundle_source(path) for path in sorted((ROOT / "patterns").glob("*.cep"))]
    twins = {text: _without_docs(compilable(load_text(text))) for text in texts}

    def feed(random: Random) -> str:
        original = random.choice(texts)
        text = broken_source(original, random) if random.random() < 0.4 else broken_text(original, random)
        checked = compilable(load_text(text))
        render_text(checked.diagnostics, checked.sources)
        lint(checked)
        formatted, _ = format_text(text)
        if not checked.ok:
            for name in twins[original]:  # the refusal of a record names its hash, too
                pattern_hash(text, name)
            return REFUSED
        accepted, twin = _without_docs(checked), twins[original]
        if formatted is not None and _without_docs(compilable(load_text(formatted))) != accepted:
            raise DiffersError("a pattern that is formatted is another one")
        for name in accepted.keys() & twin.keys():
            if accepted[name] != twin[name] and pattern_hash(text, name) == pattern_hash(original, name):
                raise DiffersError(f"pattern `{name}` is another one under the same hash")
        return ACCEPTED

    return feed


def _without_docs(checked: Checked) -> dict[str, PatternIR]:
    """Return the patterns without their doc comments, which decide no alert."""
    return {name: replace(pattern, doc="") for name, pattern in checked.patterns.items()}


def files(folder: Path) -> Feed:
    """Pattern files on disk that name other files, at any path."""
    inside = folder / "root"
    inside.mkdir()
    (folder / "secret.cep").write_text("a-secret-line !\n")
    (folder / "secret.csv").write_text("blocked\na-secret-line\n")
    (inside / "events.cep").write_bytes((ROOT / "patterns" / "events.cep").read_bytes())
    (inside / "link.cep").symlink_to(folder / "secret.cep")
    (inside / "good.csv").write_text("blocked\n1\n2\n")
    names = ["events.cep", "../secret.cep", "../secret.csv", "link.cep", "/etc/passwd", "/dev/zero", "good.csv"]
    names += ["a\0b", "."]
    base = 'import "NAME"\nimport "events.cep"\nlist blocked: int from "LIST"\n'
    path = inside / "x.cep"

    def feed(random: Random) -> str:
        imported, listed = (random.choice([good] * len(names) + names) for good in ("events.cep", "good.csv"))
        text = base.replace("NAME", imported).replace("LIST", listed).encode()
        path.write_bytes(broken_bytes(text, random) if random.random() < 0.7 else text)
        checked = compilable(load_files([path]))
        output = render_text(checked.diagnostics, checked.sources)
        if "a-secret" in output or "root:x" in output:
            raise DiffersError(f"what is outside is quoted: {output}")
        return ACCEPTED if checked.ok else REFUSED

    return feed


def rule_files(folder: Path) -> Feed:
    """A folder with one rule file and the lock next to it.

    An accepted rule has the values of its file, by an independent reading, and equals the unbroken rule if both files
    have the same values.
    """
    texts = [path.read_bytes() for path in sorted((ROOT / "rules").glob("*.toml"))]
    lock = (ROOT / "rules" / "rules.lock").read_bytes()
    (folder / "patterns").mkdir()
    for path in (ROOT / "patterns").glob("*.cep"):
        (folder / "patterns" / path.name).write_bytes(path.read_bytes())
    (folder / "rules").mkdir()
    sources = {path.name: bundle_source(path) for path in (folder / "patterns").glob("*.cep")}

    twins = {text: control.parse_rule_file(text)[0] for text in texts}

    def feed(random: Random) -> str:
        original = text = random.choice(texts)
        text = text + random.choice(TOML_TRICKS).encode() if random.random() < 0.2 else broken_bytes(text, random)
        match random.randrange(6):
            case 0:
                (folder / "rules" / "card_testing.toml").write_bytes(text)
                records, problems = read_rules(folder / "rules")
                return ACCEPTED if records and not problems else REFUSED
            case 1:
                (folder / "rules" / "rules.lock").write_bytes(broken_bytes(lock, random))
                try:
                    read_lock(folder / "rules")
                except CepError:
                    return REFUSED
                return ACCEPTED
        rule, mistakes = control.parse_rule_file(text)
        if rule is None:
            assert mistakes, "a refusal without a reason"
            return REFUSED
        values = tomllib.loads(text.decode())
        _says_no_more(control.RuleFile, rule, values, "a rule file")
        if values == tomllib.loads(original.decode()) and rule != twins[original]:
            raise DiffersError("a rule file that says the same is another rule")
        record = control.upsert_of(rule, "pattern p = a: e")
        if control.parse_control(record.to_json()) != (record, []):
            raise DiffersError("a rule that is published is another one")
        source = sources.get(Path(rule.file).name)
        if source is not None and random.random() < 0.1:
            deploy([control.upsert_of(rule, source)])
        return ACCEPTED

    return feed


def settings(folder: Path) -> Feed:
    """A settings file. An accepted one sets exactly its own values, by an independent reading."""
    text = default_file().encode()
    examples = text.replace(b"\n# ", b"\n#  ").replace(b"\n#  alerts", b"\nalerts")
    path = folder / "cep.toml"

    def feed(random: Random) -> str:
        lines = random.choice((text, examples)).split(b"\n")
        if random.random() < 0.5:
            number = random.randrange(len(lines))
            lines[number] = lines[number].lstrip(b"# ") if b" = " in lines[number] else lines[number]
            changed = b"\n".join(lines)
        else:
            changed = broken_bytes(b"\n".join(lines), random)
        path.write_bytes(changed + (random.choice(TOML_TRICKS).encode() if random.random() < 0.1 else b""))
        try:
            accepted = read_settings(path, {})
        except CepError:
            return REFUSED
        values = tomllib.loads(path.read_text("utf-8"))
        if unknown := values.keys() - SECTIONS.keys():
            raise DiffersError(f"{unknown} are passed over")
        for section, model in SECTIONS.items():
            _says_no_more(model, getattr(accepted, section), values.get(section, {}), section)
        # A file's paths are relative to its folder.
        if accepted.model_dump_json().replace(f"{folder}/", "") != read_settings(None, values).model_dump_json():
            raise DiffersError("settings that are given as flags are others")
        return ACCEPTED

    return feed


def _says_no_more(model: type[BaseModel], accepted: BaseModel, values: Mapping[str, Any], place: str) -> None:
    """Raise DiffersError if a table has an ignored name, or a value is set that the table does not have."""
    if unknown := values.keys() - model.model_fields.keys():
        raise DiffersError(f"{unknown} of {place} are passed over")
    for name, field in model.model_fields.items():
        if name not in values and getattr(accepted, name) != field.get_default(call_default_factory=True):
            raise DiffersError(f"`{name}` of {place} is set, and nobody has said it")


def controls(folder: Path) -> Feed:
    """Records of the control topic, applied to a rulebook that has rules."""
    upserts, _ = read_rules(ROOT / "rules")
    deployment = deploy(upserts)
    first = upserts[0]
    others: list[control.ControlRecord] = [
        control.RetireRecord(id=first.id, version=first.version + 1),
        control.PauseRecord(id=first.id, version=1),
        control.ResumeRecord(id=first.id, version=2),
        control.SnoozeRecord(id=first.id, version=1, until="2026-06-01T00:00:00Z", key="C-1", by="me"),
        control.ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a", "b"]),
        control.ListRecord(id="nets", of="cidr", version=1, change="add", entries=["10.0.0.0/8"]),
        control.HeartbeatRecord(event_time="2026-06-01T00:00:00Z"),
    ]
    texts = [record.to_json() for record in (*upserts, *others)]
    texts += [first.model_copy(update={"version": first.version + 1}).to_json()]
    trees = [json.loads(text) for text in texts]

    def feed(random: Random) -> str:
        if random.random() < 0.02:
            data = deep(random).encode()
        elif random.random() < 0.6:
            data = json.dumps(broken_value(random.choice(trees), random)).encode()
        else:
            data = broken_bytes(random.choice(texts), random)
        record, problems = control.parse_control(data)
        if record is None:
            assert problems, "a refusal without a reason"
            return REFUSED
        if control.parse_control(record.to_json()) != (record, []):
            raise DiffersError("a record that is written down is another one")
        if getattr(record, "source", None) is not None and random.random() > 0.05:
            return ACCEPTED  # compiling takes long; a few inputs show that it ends
        rulebook: Rulebook = deployment.rulebook.copy()
        before = rulebook.fingerprint
        outcome = rulebook.apply(record, random.choice((None, 0, 1_780_000_000_000)))
        if outcome.kind == "applied":
            return ACCEPTED
        if rulebook.fingerprint != before:
            raise DiffersError("a refused record has changed the rules")
        return REFUSED

    return feed


def lists(folder: Path) -> Feed:
    """Files of lists, and the entries in them."""
    texts = {
        "string": b"# blocked\nC-1\nC-2\n\nC-3 \n" * 3, "int": b"1\n-5\n9223372036854775807\n",
        "prefix": b"41\n411\n55\n", "cidr": b"10.0.0.0/8\n2001:db8::/32\n1.2.3.4\n", "decimal(2)": b"1.25\n-3\n0.10\n",
    }  # fmt: skip
    tables = [b'added,blocked\n2026-01-01,"C-1"\n2026-01-02, C-2\n', b"blocked\n1\n2\n", b"a,b,c\n,,\n1,2,3\n"]

    def feed(random: Random) -> str:
        kind = random.choice(list(texts))
        is_table = random.random() < 0.4
        path = folder / ("list.csv" if is_table else "list.txt")
        path.write_bytes(broken_bytes(random.choice(tables) if is_table else texts[kind], random))
        try:
            entries = read_entries(path, "blocked", folder)
        except CepError:
            return REFUSED
        keys, wrong = keys_of(entries, kind)
        content = Content(kind).changed("replace", keys).changed("add", keys).changed("remove", keys)
        if len(content):
            raise DiffersError("a list that is emptied has entries")
        return REFUSED if wrong else ACCEPTED

    return feed


def declared(folder: Path) -> Feed:
    """Lists with their entries in a pattern file."""
    base = "event e { id id  event_time time  key string }\nlist bins: KIND = [ITEMS]\n"
    items = ['"41"', "1", "1.5", '"10.0.0.0/8"', "-3", '""', "true", '"' + "x" * 300 + '"', "9" * 30, "'a'"]

    def feed(random: Random) -> str:
        chosen = ", ".join(random.choice(items) for _ in range(random.randrange(6)))
        kind = random.choice(("string", "prefix", "int", "cidr", "decimal(2)", "float", "list"))
        text = base.replace("KIND", kind).replace("ITEMS", chosen)
        text = broken_text(text, random) if random.random() < 0.5 else text
        checked = load_text(text)
        result = given_lists(checked)
        render_text([*checked.diagnostics, *result.diagnostics], checked.sources)
        return ACCEPTED if checked.ok and not result.diagnostics else REFUSED

    return feed


KINDS = (
    Kind("patterns", 20, patterns), Kind("files", 15, files), Kind("rules", 70, rule_files),
    Kind("settings", 40, settings), Kind("controls", 170, controls), Kind("lists", 60, lists),
    Kind("declared lists", 20, declared),
)  # fmt: skip
