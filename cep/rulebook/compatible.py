"""Can a rule run in this job? A record and the job's schema and keys → a bound pattern, or the reasons against it.

Where rules see tokens, raw values are refused: in a list or a snooze, or the rule that looks up a card number in a
list.

The runs of one pattern may go on as runs of another (`same_automaton`) if both have the same automaton and give a run's
past the same meaning. Structure, windows, counts of repetitions, NFA states and registers are equal, and so is every
condition that an event must not have met so far: of a negated variable, and of `until`. Other conditions, and the
measures, may differ in numbers and texts: from then on the new ones decide. A run does not know its events that matched
nothing. So the place that it would have under other counts, or under another negation, cannot be worked out from it:
such runs drain.
Tested by: tests/rulebook/test_carry.py, tests/rulebook/test_suppression.py
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import NamedTuple

import pyarrow as pa

from cep.base.errors import StateError
from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.base.schema import EventType, Schema, Type, is_wider
from cep.base.secrets import token_key
from cep.base.text import hint_at_nearest
from cep.columnar.decode import key_parts
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic
from cep.lang.ir import Const, PatternIR, Quantifier, Step, Variable, VarNode
from cep.lang.load import Bundle, Checked, load_text
from cep.lang.walk import histories, nodes, nodes_of
from cep.lists.entries import TEXT, Keys
from cep.lists.store import Lists
from cep.model.rule import ListRecord, SnoozeRecord, UpsertRecord
from cep.nfa.compile import compile_rules, problems
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import raw_count, raw_keys, token_lists
from cep.nfa.program import Program
from cep.rulebook.outcome import Outcome

_TEXTS_CACHED = 4_096  # without their syntax; a folder may have a text for each of its rules
KeyDomains = tuple[tuple[str, ...], ...]


def compile_rule(record: UpsertRecord, schema: Schema, key_domains: KeyDomains | None) -> PatternIR | Outcome:
    """Compile the pattern of a record, and check that this job has its events and keys.

    `key_domains` are the keys by which the job routes events; None: by any key. Only the first reason is returned.
    """
    checked = checked_text(record.source)
    if not checked.ok:  # diagnostics call the text by the name of the rule
        mistakes = load_text(record.source, record.id).diagnostics
        return Outcome("refused", "the pattern text has mistakes", tuple(mistakes))
    protected = _unprotected(checked.schema, schema)  # fields that only the job protects: rules see tokens
    if protected:
        checked = _with_protected(record.source, protected)
        if not checked.ok:
            names = ", ".join(f"`{name}`" for name, _ in protected)
            reason = f"the job protects {names}, and the text reads the value itself; declare the field as the job does"
            mistakes = load_text(record.source, record.id, protected=dict(protected)).diagnostics
            return Outcome("refused", reason, tuple(mistakes))
    pattern = checked.patterns.get(record.pattern)
    if pattern is None:
        near = hint_at_nearest(record.pattern, tuple(checked.patterns))
        return Outcome("refused", f"the text has no pattern `{record.pattern}`{near}")
    bound = None if record.params else checked.by_default.get(record.pattern)
    if bound is None:
        bound, diagnostics = bind(pattern, record.params)
        if bound is None:
            return Outcome("refused", "the parameters do not fit the pattern", tuple(diagnostics))
    reason = (
        _schema_reason(bound, checked.schema, schema)
        or _key_reason(bound, key_domains)
        or _message_reason(record, bound)
        or _escalate_reason(record, bound)
        or "; ".join(problems(bound, schema))
    )
    return Outcome("refused", reason) if reason else bound


def _unprotected(rule_schema: Schema, job: Schema) -> tuple[tuple[str, str], ...]:
    """Return the fields that the job protects and the rule's text does not, each with its protection in the job."""
    declared = rule_schema.columns()
    return tuple(
        (name, type_.protected)
        for name, type_ in job.protected
        if name in declared and declared[name].protected != type_.protected
    )


@lru_cache(_TEXTS_CACHED)
def _with_protected(source: str, protected: tuple[tuple[str, str], ...]) -> Checked:
    """Check a text as if it declared these fields protected: the rule reads tokens."""
    return load_text(source, protected=dict(protected)).without_syntax()


def checked_text(source: str) -> Checked:
    """Read a text, or take it from the cache, without its syntax. A changed parameter or a restart brings it again."""
    return _checked(_Text(source))


def cache_checked(bundle: Bundle) -> None:
    """Put the checked form of a bundled text into the cache."""
    _checked(_Text(bundle.text, bundle.checked))


class _Text(NamedTuple):
    """A text with its checked form, if a reader has it. Equal texts are equal keys of the cache."""

    source: str
    checked: Checked | None = None

    def __hash__(self) -> int:
        return hash(self.source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and self.source == other.source


@lru_cache(_TEXTS_CACHED)
def _checked(text: _Text) -> Checked:
    return text.checked or load_text(text.source).without_syntax()


@lru_cache(_TEXTS_CACHED)
def chain_lengths_after(source: str) -> Mapping[str, int]:
    """Count for each pattern of a text how many patterns follow it at most: each reads events of the one before."""
    patterns = checked_text(source).patterns
    readers: dict[str, set[str]] = {}
    for name, pattern in patterns.items():  # `histories` are its aggregates over past events, also of derived ones
        for event_type in (*pattern.event_types, *(past.event_type for past in histories(pattern))):
            readers.setdefault(event_type, set()).add(name)
    lengths = dict.fromkeys(patterns, 0)
    for _ in range(PRODUCE_DEPTH_MAX):  # each pass adds one pattern to the chains
        by_type = {event_type: 1 + max(lengths[name] for name in names) for event_type, names in readers.items()}
        lengths = {name: by_type.get(pattern.produces or "", 0) for name, pattern in patterns.items()}
    return lengths


def _schema_reason(pattern: PatternIR, rule_schema: Schema, job: Schema) -> str:
    """Return why the job's event types do not suit the rule, "" if they do.

    A field of another type is refused, also an enum with other codes or a decimal with another scale. A field may be
    null in the job although it is never null in the rule's text, unless the rule writes it into a required field.
    """
    looked_back_at = [past.event_type for past in histories(pattern) if past.event_type]
    named: set[str] | None = None
    for name in dict.fromkeys((*pattern.event_types, *looked_back_at)):
        declared = rule_schema.event_type(name)
        assert declared is not None
        offered = job.event_type(name)
        if offered is None:
            names = tuple(e.name for e in job.event_types)
            return f"the job has no events `{name}`{hint_at_nearest(name, names)}"
        if declared.order_field not in ("", offered.order_field):
            in_job = f"by `{offered.order_field}`" if offered.order_field else "by no field"
            return f"`{name}` is in order by `{declared.order_field}` in the rule and {in_job} in the job"
        if offered.fields == declared.fields:
            continue  # this saves time for nearly all rules: `_names` visits every part of a pattern
        named = _names(pattern) if named is None else named
        read = {declared.id_field, declared.time_field, *named}
        reason = _fields_reason(declared, offered, read, produces_required=_produces_required_fields(pattern, job))
        if reason:
            return reason
    return ""


def _produces_required_fields(pattern: PatternIR, job: Schema) -> bool:
    """Return True if the pattern produces events with a field that must not be null, in addition to id and time."""
    produced = None if pattern.produces is None else job.event_type(pattern.produces)
    if produced is None:
        return pattern.produces is not None
    identity = (produced.id_field, produced.time_field)
    return any(not field.type.nullable for field in produced.fields if field.name not in identity)


def _fields_reason(declared: EventType, offered: EventType, read: set[str], *, produces_required: bool) -> str:
    """Return why the fields of the job's events do not suit a rule that reads the fields `read`, "" if they do."""
    for field in declared.fields:
        in_job = offered.field(field.name)
        if in_job is None:
            if field.name not in read:
                continue  # the job has dropped it, and the rule does not read it
            return f"`{declared.name}` has a field `{field.name}` that the job's events have not"
        # The job may have nulls that the rule does not expect. They do no harm, unless the rule emits required fields.
        fits = is_wider(in_job.type, field.type)
        if not fits or (produces_required and field.name in read and in_job.type.nullable != field.type.nullable):
            return f"`{declared.name}.{field.name}` is {field.type} in the rule and {in_job.type} in the job"
    return ""


def _names(pattern: PatternIR) -> set[str]:
    """Return every word of a pattern that may be the name of a field, and more: symbols, names of functions."""
    words: set[str] = set()
    for node in nodes(pattern):
        for name in _words_of(type(node)):  # type: ignore[arg-type] # mypy takes object for unhashable
            value = getattr(node, name)
            if isinstance(value, str):
                words.add(value)
            elif isinstance(value, tuple):
                words.update(v for v in value if isinstance(v, str))
    return words


@cache
def _words_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def _key_reason(pattern: PatternIR, key_domains: KeyDomains | None) -> str:
    if key_domains is None or pattern.key in key_domains:
        return ""
    routed = "; ".join(", ".join(domain) for domain in key_domains)
    return f"the job does not route events by ({', '.join(pattern.key)}), only by: {routed}"


def _message_reason(record: UpsertRecord, pattern: PatternIR) -> str:
    measures = [m.name for m in (*pattern.measures, *(pattern.timeout_measures or ()))]
    names = ("key", *measures)
    for name in record.placeholders:
        if name not in names:
            return f"the message speaks of {{{name}}}, which the pattern does not emit{hint_at_nearest(name, names)}"
    return ""


def _escalate_reason(record: UpsertRecord, pattern: PatternIR) -> str:
    """Return why `escalate` names no number of the alert."""
    if record.escalate is None:
        return ""
    if record.suppress is None:
        return "`escalate` says what breaks `suppress`, which the rule does not have; leave it out"
    numbers = tuple(m.name for m in pattern.measures if m.value.type.is_number)
    if record.escalate not in numbers:
        named = hint_at_nearest(record.escalate, numbers)
        return f"`escalate` names `{record.escalate}`, which is no number that the pattern emits{named}"
    return ""


_HELP = "give tokens, as alerts show them"


def raw_entries(record: ListRecord, patterns: Iterable[PatternIR], stored: Callable[[str], Keys]) -> Outcome | None:
    """Refuse a list with raw values in which a rule looks up a protected field. Return None for other lists.

    Rules see a protected field as a token (keyed hash), so a raw card number would match nothing, and be exposed.
    `stored` returns the entries of a set by its name.
    """
    if record.change == "remove":  # raw entries from before the rule may be removed
        return None
    if not any((record.id, record.of) in token_lists(pattern) for pattern in patterns):
        return None
    raw = raw_count(pa.array([str(entry) for entry in record.entries], TEXT))
    if record.stored is not None:
        with suppress(StateError, KeyError):  # RuleLists says that it is not there
            raw += raw_keys(stored(record.stored), record.of)
    message = f"{raw} of its entries are no tokens, and a rule looks a field of type pan or sensitive up in the list"
    return _refused(message) if raw else None


def raw_lists(pattern: PatternIR, lists: Lists) -> Outcome | None:
    """Refuse a rule that looks up a protected field in a list with raw values. Return None for other rules."""
    for name, kind in sorted(token_lists(pattern)):  # lists of tokens (keyed hashes of protected values)
        for version in lists.get((name, kind), ())[-1:]:  # the newest version, if there is one
            content = version.content
            raw = sum(raw_keys(part.keys, kind) for part in (content.base, content.added))
            raw -= raw_keys(content.removed.keys, kind)
            if raw:
                return _refused(
                    f"{raw} entries of the list `{name}` are no tokens, and the rule looks a field of type pan or "
                    "sensitive up in it"
                )
    return None


def raw_key(record: SnoozeRecord, patterns: Iterable[PatternIR], schema: Schema) -> Outcome | None:
    """Return the refusal of a snooze whose key has a value where a pattern of its rule has a token; None for others."""
    protected = {name for name, _ in schema.protected}
    for key_fields in {pattern.key for pattern in patterns}:
        named = zip(key_fields, key_parts(record.key or "", key_fields), strict=False)
        if record.key is not None and any(name in protected and token_key(part) is None for name, part in named):
            return _refused("its key is no token, and the rule has a field of type pan or sensitive as its key")
    return None


def _refused(message: str) -> Outcome:
    return Outcome("refused", _HELP, (Diagnostic("CEP320", message),))


def same_automaton(before: PatternIR, after: PatternIR, schema: Schema) -> bool:
    """Return True if open runs of one version can continue in the other. Both patterns are bound and have compiled."""
    forbidden = (step.node for step in nodes_of(after.structure, Step) if step.negated)
    negated = frozenset(node.variable for node in nodes_of(tuple(forbidden), VarNode))
    if before.key != after.key or _without_constants(before, negated) != _without_constants(after, negated):
        return False
    one, other = (compile_rules(schema, p.key, (DeployedRule("carry", 1, 0, "", p),)) for p in (before, after))
    return _automaton_of(one) == _automaton_of(other)


def _automaton_of(program: Program) -> tuple[object, ...]:
    """Return what an open run depends on. It has each emitted history from when an event came, or never."""
    rule, emitted = program.rules[0], [column.name for _, column in program.emitted]
    return program.width, rule.states_count, program.row_registers.tolist(), rule.measures, emitted


def _without_constants(value: object, negated: frozenset[str] = frozenset()) -> object:
    """Return a pattern's tree without constants: if two versions have equal trees, one can continue the other's runs.

    Then the new constants apply to later events only. Windows, counts, and the constants of `until` and of `negated`
    variables (events that must not come) stay in the tree: by these, the runs have already ignored some events.
    """
    if isinstance(value, Const):
        return "const", repr(value.type)
    if isinstance(value, Quantifier) or (isinstance(value, Variable) and value.name in negated):
        return repr(value)
    if isinstance(value, Enum | str | bool | int | float | Type) or value is None:
        return repr(value)
    if isinstance(value, tuple):
        return tuple(_without_constants(item, negated) for item in value)
    assert is_dataclass(value), f"{type(value).__name__} in a pattern"
    parts = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "doc"}
    return type(value).__name__, tuple((name, _without_constants(part, negated)) for name, part in parts.items())
