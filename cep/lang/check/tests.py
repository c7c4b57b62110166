"""Tests as written → checked tests with complete events and sound expectations; mistakes are collected.

Defaults: a field that an event does not name is null if it may be, otherwise "", 0, false or the first symbol of its
enum; the id is generated (in the order of the events); the key fields come from the label:

    key of one field    text: the label's text; int, decimal, bool, enum: the label is such a value (`4711:`)
    key of several      text: label.field (`c1.payer`); others must be given: `c1(account = 4711):`

A field in `c1(…)` has the given value. Expectations name existing keys and values, and do not contradict each other.
Tested by: tests/lang/test_check_tests.py, tests/lang/golden/diagnostics/
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from cep.base.limits import EVENT_TIME_MS_MAX, PAN_DIGITS_MIN, TEST_EVENTS_MAX
from cep.base.schema import TIME_FIELD, EventType, Kind, Type
from cep.lang import ir, syntax
from cep.lang.check.bind import bind_at
from cep.lang.check.resolve import Resolved, duplicate, once
from cep.lang.check.types import convert_const, symbol_const, written_constant
from cep.lang.diagnostics import Collector, Label, Span, did_you_mean


def slot_of(node: syntax.ExprSyntax, value_type: Type, noun: str, collector: Collector) -> ir.Const | None:
    """Return the constant that a test writes for a field or parameter, None after a report, which calls it `noun`."""
    if isinstance(node, syntax.NameRef):
        if value_type.kind is Kind.LIST:
            return ir.Const(node.name, value_type)
        if node.name in value_type.symbols:
            return ir.Const(value_type.symbols.index(node.name), value_type)
        if value_type.kind is Kind.ENUM:
            help_line = did_you_mean(node.name, value_type.symbols, "its symbols")
        else:
            help_line = f'write it in quotes: "{node.name}"' if value_type.is_text else ""
        collector.add("CEP604", f"`{node.name}` is not a value of {noun}, {_a(value_type)}", node.span, help_line)
        return None
    const = written_constant(node)
    converted: ir.Const | None = None
    if const is not None:
        if const.value is None and not value_type.nullable:
            collector.add("CEP604", f"{noun} is never null", node.span)
            return None
        if const.type.kind is Kind.DURATION and value_type.kind is Kind.TIME:
            return ir.Const(const.value, value_type)  # a time is written as a duration since the start of the test
        converted = symbol_const(const.value, value_type)  # a symbol in quotes
        if converted is None and value_type.protected and may_be_card_number(str(const.value)):
            help_line = 'write a name, like "card-1"'  # rules never see the number, only a token (its keyed hash)
            collector.add("CEP320", f"{noun} is a token in a rule; a test needs no number", node.span, help_line)
            return None
        converted = converted or convert_const(const, value_type)
    if converted is None:
        collector.add("CEP604", f"this is not a value of {noun}, {_a(value_type)}", node.span, _help(node, value_type))
    return converted


def may_be_card_number(text: str) -> bool:
    """Return True for a text with as many digits as a card number has."""
    return sum(character.isdigit() for character in text) >= PAN_DIGITS_MIN


def _a(value_type: Type) -> str:
    return f"which is {value_type.as_nullable(False)}"


def _help(node: syntax.ExprSyntax, value_type: Type) -> str:
    if isinstance(node, syntax.Literal) and isinstance(node.value, str) and node.value in value_type.symbols:
        return f"write the symbol without quotes: `{node.value}`"
    if value_type.kind is Kind.DECIMAL:
        return f"write a number with at most {value_type.scale} digits after the point"
    if value_type.kind in (Kind.DURATION, Kind.TIME):
        since = ", the time since the start of the test" if value_type.kind is Kind.TIME else ""
        return f"write a duration like `10 min`{since}"
    return 'write it in quotes, like `"abc"`' if value_type.is_text else ""


def tolerance_of(node: syntax.ExprSyntax, value_type: Type) -> float:
    """Return how far a float may be from the number written for it: it has to round to the written digits."""
    if value_type.kind is not Kind.FLOAT:
        return 0.0
    if isinstance(node, syntax.UnarySyntax):
        return tolerance_of(node.argument, value_type)
    if isinstance(node, syntax.Literal) and isinstance(node.value, int | Decimal) and not isinstance(node.value, bool):
        exponent = node.value.as_tuple().exponent if isinstance(node.value, Decimal) else 0
        assert isinstance(exponent, int)
        return 0.5 * 10.0**exponent
    return 0.0


def argument_of(const: ir.Const) -> object:
    """Return the constant as `bind` takes it."""
    value, value_type = const.value, const.type
    if value_type.kind is Kind.DECIMAL and isinstance(value, int):
        return Decimal(value).scaleb(-value_type.scale)
    if value_type.kind is Kind.ENUM and isinstance(value, int):
        return value_type.symbols[value]
    return f"{value} ms" if value_type.kind is Kind.DURATION else value


def neutral(value_type: Type) -> ir.Slot:
    """Return the default of a field that a test does not name (see the module's docstring)."""
    if value_type.nullable:
        return None
    if value_type.is_text:
        return ""
    if value_type.kind is Kind.BOOL:
        return False
    return 0.0 if value_type.kind is Kind.FLOAT else 0


def check_tests(
    resolved: Resolved, patterns: Mapping[str, ir.PatternIR], collector: Collector
) -> tuple[tuple[ir.PatternTest, ...], tuple[ir.RefusedTest, ...]]:
    """Check every test of the file set. Return the tests without mistakes, and the other tests."""
    sound: list[ir.PatternTest] = []
    refused: list[ir.RefusedTest] = []
    first: dict[tuple[str, str], Span] = {}
    for test in resolved.tests:
        name = test.pattern.name
        if (name, test.name) in first:
            duplicate("test", test.name, test.span, first[name, test.name], collector)
            continue
        first[name, test.name] = test.span
        if name not in resolved.patterns:
            help_line = did_you_mean(name, resolved.patterns, "patterns")
            collector.add("CEP601", f"there is no pattern `{name}`", test.pattern.span, help_line)
        pattern = patterns.get(name)
        checked = None if pattern is None else _TestChecker(test, pattern, resolved, collector).check()
        if checked is None:
            refused.append(ir.RefusedTest(test.name, name, test.span))
        else:
            sound.append(checked)
    return tuple(sound), tuple(refused)


@dataclass(slots=True)
class _TestChecker:
    """Checks one test against its pattern, which may have parameters."""

    test: syntax.PatternTestSyntax
    pattern: ir.PatternIR
    resolved: Resolved
    collector: Collector
    keys: dict[str, dict[str, ir.Slot]] = field(default_factory=dict)  # label of a key → its fields and their values
    key_spans: dict[str, Span] = field(default_factory=dict)  # label of a key → the place that names it first
    ids: dict[str, Span] = field(default_factory=dict)  # of events, if they are written

    def check(self) -> ir.PatternTest | None:
        """Return the checked test, None after a report."""
        test, errors = self.test, self.collector.error_count
        arguments = self._arguments()
        for key in test.keys:
            self._key(key)
        events = self._events()
        if not test.expects and not test.broken:
            message = f"the test `{test.name}` expects nothing, so it cannot fail"
            self.collector.add("CEP602", message, test.span, "write `expect none` if nothing may come out")
        self._contradictions()
        matches = [expect for expect in test.expects if expect.kind in ("match", "timeout")]
        expected = tuple(self._expected(expect) for expect in matches)
        counted = [expect for expect in test.expects if expect.kind == "matches"]
        counts = tuple(ir.ExpectedCount(self._expected_key(e), e.count, e.span) for e in counted)
        nothing = tuple(self._expected_key(expect) for expect in test.expects if expect.kind == "none")
        if test.broken or self.collector.error_count > errors:
            return None
        spans = {argument.name: argument.value.span for argument in test.arguments}
        bound = bind_at(self.pattern, arguments, spans, test.pattern.span, self.collector)
        if bound is None:
            return None
        return ir.PatternTest(
            name=test.name,
            pattern=bound,
            arguments=tuple(arguments.items()),
            events=events,
            expected=expected,
            counts=counts,
            nothing=nothing,
            todo=test.todo,
            span=test.span,
        )

    def _arguments(self) -> dict[str, object]:
        """Return the values that the test gives to parameters. Report unknown names and wrong values."""
        declared = {p.name: p for p in self.pattern.params}
        values: dict[str, object] = {}
        names: dict[str, syntax.AssignSyntax] = {}
        for argument in self.test.arguments:
            param = declared.get(argument.name)
            if param is None:
                help_line = did_you_mean(argument.name, declared, "parameters")
                message = f"`{argument.name}` is not a parameter of the pattern `{self.pattern.name}`"
                self.collector.add("CEP501", message, argument.span, help_line)
            elif once(names, argument, "argument", self.collector):
                const = slot_of(argument.value, param.type, f"the parameter `{param.name}`", self.collector)
                if const is not None:
                    values[argument.name] = argument_of(const)
        return values

    def _key(self, key: syntax.ScriptedKeySyntax) -> None:
        """Store the values of a key's fields where its label first stands: as given, or derived from the label."""
        label = _label_text(key.label)
        if label in self.keys:
            if key.fields:
                labels = (Label(self.key_spans[label], "first named here"),)
                message = f"the fields of the key `{label}` belong to the place where it is first named"
                self.collector.add("CEP605", message, key.label.span, "leave them out here", labels)
            return
        columns = {f.name: f.type for e in self.pattern.event_types for f in self.resolved.events[e].fields}
        types = {name: columns[name].as_nullable(False) for name in self.pattern.key}  # a key is never null
        key_values = self._key_fields(key, types)
        values: dict[str, ir.Slot] = {}
        for name, value_type in types.items():
            const = key_values[name] if name in key_values else self._from_label(key, name, value_type, len(types))
            if const is not None:
                values[name] = const.value
        self.keys[label] = values
        self.key_spans[label] = key.label.span

    def _key_fields(self, key: syntax.ScriptedKeySyntax, types: Mapping[str, Type]) -> dict[str, ir.Const | None]:
        key_values: dict[str, ir.Const | None] = {}
        for part in key.fields:
            if part.name not in types:
                message = f"`{part.name}` is not a field of the key ({', '.join(types)})"
                self.collector.add("CEP605", message, part.span, did_you_mean(part.name, types, "its fields"))
            else:
                subject = f"the key field `{part.name}`"
                key_values[part.name] = slot_of(part.value, types[part.name], subject, self.collector)
        return key_values

    def _from_label(self, key: syntax.ScriptedKeySyntax, name: str, value_type: Type, key_size: int) -> ir.Const | None:
        """Derive a key field's value from the label, such as `alice` in `alice: 20s payment`. None after a report."""
        label = _label_text(key.label)
        if value_type.is_text:
            text = syntax.Literal(label if key_size == 1 else f"{label}.{name}", key.label.span)  # two: `c1.payer`
            return slot_of(text, value_type, f"the key field `{name}`", self.collector)
        if key_size == 1:  # the label may be a value, as in `4711:`
            quiet = Collector()  # the mistake is reported below
            const = slot_of(_as_value(key.label), value_type, "", quiet)
            if const is not None:
                return const
        message = f"the key field `{name}` is {value_type}, but the label `{label}` is not"
        example = "…" if value_type.kind is not Kind.ENUM else value_type.symbols[0]
        help_line = f"write the value as the label, or `{label}({name} = {example}):`"
        self.collector.add("CEP605", message, key.label.span, help_line)
        return None

    def _events(self) -> tuple[ir.ScriptedEvent, ...]:
        """Return all events of a test by time, each repetition as an event of its own."""
        written = [(event, _label_text(key.label)) for key in self.test.keys for event in key.events]
        count = sum(event.count for event, _ in written)
        if count > TEST_EVENTS_MAX:
            span = max(written, key=lambda item: item[0].count)[0].span
            message = f"this test has {count} events, more than {TEST_EVENTS_MAX}"
            self.collector.add("CEP609", message, span)
            return ()
        self._check_order(written)
        events: list[ir.ScriptedEvent] = []
        for event, label in written:
            events += self._event(event, label)
        events.sort(key=lambda e: e.time_ms)  # events of one time stay in the order of the text
        return tuple(self._identified(event, number) for number, event in enumerate(events, start=1))

    def _check_order(self, written: list[tuple[syntax.ScriptedEventSyntax, str]]) -> None:
        """Report an event that is written below a later one of its key: a slip, for both would be sorted."""
        latest: dict[str, syntax.ScriptedEventSyntax] = {}
        for event, label in written:
            before = latest.setdefault(label, event)
            if event.time.ms < before.time.ms:
                labels = (Label(before.time.span, "comes later, and is written above"),)
                message = f"events of the key `{label}` are not in the order of their times"
                help_line = "write them in order; each time is since the start of the test, not since the event before"
                self.collector.add("CEP610", message, event.time.span, help_line, labels)
            latest[label] = event

    def _event(self, event: syntax.ScriptedEventSyntax, label: str) -> list[ir.ScriptedEvent]:
        """Check one written event. Return its repetitions."""
        name = event.event_type
        event_type = self.resolved.events.get(name.name)
        if event_type is None or name.name in self.resolved.faulty:
            if event_type is None:
                help_line = did_you_mean(name.name, self.resolved.events, "event types")
                self.collector.add("CEP202", f"`{name.name}` is not an event type", name.span, help_line)
            return []  # a faulty type is reported at its declaration
        missing = [f for f in self.pattern.key if event_type.field(f) is None]
        if missing:
            message = f"`{name.name}` has no field `{missing[0]}`, so it belongs to no key of `{self.pattern.name}`"
            self.collector.add("CEP605", message, name.span, "leave the event out: the pattern never sees it")
            return []
        values = self._fields(event, event_type, label)
        if event.count < 1:
            self.collector.add("CEP608", "an event is repeated at least once", event.span, "write `x2 every 20s`")
        id_value = values.get(event_type.id_field)
        fields = tuple((f.name, values[f.name]) for f in event_type.fields if f.name != TIME_FIELD)
        repeat_ms = 0 if event.every is None else event.every.ms
        if event.time.ms + max(event.count - 1, 0) * repeat_ms > EVENT_TIME_MS_MAX:
            message = "a job rejects an event this far in the future"
            self.collector.add("CEP104", message, event.span, "write an earlier time")
        event_id = "" if id_value is None else str(id_value)  # `_identified` replaces "" by a new id
        if event_id:
            self._unique_id(event_id, event)
        repetitions = range(max(event.count, 1))
        return [
            ir.ScriptedEvent(label, name.name, event.time.ms + i * repeat_ms, event_id, fields, event.span)
            for i in repetitions
        ]

    def _unique_id(self, event_id: str, event: syntax.ScriptedEventSyntax) -> None:
        if event.count > 1:
            message = f"{event.count} events cannot have one id"
            self.collector.add("CEP608", message, event.span, "leave the id out: each gets one of its own")
        elif event_id in self.ids:
            labels = (Label(self.ids[event_id], "the other one"),)
            message = f"two events of this test have the id `{event_id}`"
            self.collector.add("CEP608", message, event.span, "give each its own id, or leave it out", labels)
        self.ids.setdefault(event_id, event.span)

    def _fields(self, event: syntax.ScriptedEventSyntax, event_type: EventType, label: str) -> dict[str, ir.Slot]:
        """Return the value of each field of an event: written, from the key, or neutral."""
        values = {f.name: None if f.type.kind is Kind.ID else neutral(f.type) for f in event_type.fields}
        values |= self.keys.get(label, {})
        names: dict[str, syntax.AssignSyntax] = {}
        for assigned in event.fields:
            once(names, assigned, "field", self.collector)
            self._field(assigned, event_type, values)
        return values

    def _field(self, assigned: syntax.AssignSyntax, event_type: EventType, values: dict[str, ir.Slot]) -> None:
        """Check a field of an event, such as `amount=5`, and add its value. The label before the events is the key."""
        declared = event_type.field(assigned.name)
        if declared is None:
            names = [f.name for f in event_type.fields]
            message = f"`{event_type.name}` has no field `{assigned.name}`"
            self.collector.add("CEP203", message, assigned.span, did_you_mean(assigned.name, names, "its fields"))
        elif assigned.name in self.pattern.key:
            help_line = "write the events of another key under a label of their own"
            self.collector.add(
                "CEP603", f"the key field `{assigned.name}` comes from the label", assigned.span, help_line
            )
        elif assigned.name == TIME_FIELD:
            help_line = "the time of an event stands before its type: `20s transaction`"
            message = f"`{assigned.name}` is the time of the event, and no field to set"
            self.collector.add("CEP603", message, assigned.span, help_line)
        else:
            # `null` may stand in any field but the id: a job reads a wrong value of an event as null.
            value_type = declared.type.as_nullable(assigned.name != event_type.id_field or declared.type.nullable)
            const = slot_of(assigned.value, value_type, f"`{assigned.name}`", self.collector)
            if const is not None:
                values[assigned.name] = const.value

    def _identified(self, event: ir.ScriptedEvent, number: int) -> ir.ScriptedEvent:
        if event.event_id:
            return event
        event_id = f"e{number:05d}"
        while event_id in self.ids:
            event_id += "'"
        id_field = self.resolved.events[event.event_type].id_field
        fields = tuple((n, event_id if n == id_field and v is None else v) for n, v in event.fields)
        return ir.ScriptedEvent(event.key, event.event_type, event.time_ms, event_id, fields, event.span)

    def _expected(self, expect: syntax.ExpectSyntax) -> ir.Expected:
        if expect.kind == "timeout" and self.pattern.timeout_measures is None:
            message = f"`{self.pattern.name}` emits nothing when its time runs out"
            help_line = "add `on timeout emit …` to the pattern"
            self.collector.add("CEP607", message, expect.span, help_line)
        at_ms = None if expect.at is None else expect.at.ms
        return ir.Expected(
            expect.kind == "timeout", self._expected_key(expect), at_ms, self._values(expect), expect.span
        )

    def _expected_key(self, expect: syntax.ExpectSyntax) -> str | None:
        if expect.key is None:
            return None
        label = _label_text(expect.key)
        if label not in self.keys:
            message = f"the test has no key `{label}`"
            self.collector.add("CEP606", message, expect.key.span, did_you_mean(label, self.keys, "its keys"))
        return label

    def _values(self, expect: syntax.ExpectSyntax) -> tuple[ir.ExpectedValue, ...]:
        """Check the emitted values that a test expects of a match or a time-out."""
        is_timeout = expect.kind == "timeout"
        measures = (self.pattern.timeout_measures or ()) if is_timeout else self.pattern.measures
        if is_timeout and self.pattern.timeout_measures is None:
            return ()  # already reported: the pattern has no time-outs
        types = {m.name: m.value.type for m in measures}
        values: list[ir.ExpectedValue] = []
        names: dict[str, syntax.AssignSyntax] = {}
        for measure in expect.measures:
            if measure.name not in types:
                message = f"`{self.pattern.name}` emits no `{measure.name}`{' on timeout' if is_timeout else ''}"
                help_line = did_you_mean(measure.name, types, "it emits")
                self.collector.add("CEP606", message, measure.span, help_line)
                continue
            once(names, measure, "value", self.collector)
            # A test may expect null for any value, even if the type says that the value is never null.
            const = slot_of(measure.value, types[measure.name].as_nullable(), f"`{measure.name}`", self.collector)
            if const is not None:
                tolerance = tolerance_of(measure.value, types[measure.name])
                values.append(ir.ExpectedValue(measure.name, const.value, types[measure.name], tolerance))
        return tuple(values)

    def _contradictions(self) -> None:
        """Report the first two expectations that exclude or repeat each other, such as `none` and `match` on a key."""
        for later, expect in enumerate(self.test.expects):
            for earlier in self.test.expects[:later]:
                kinds = {expect.kind, earlier.kind}
                keys_overlap = (
                    expect.key is None or earlier.key is None or _label_text(expect.key) == _label_text(earlier.key)
                )
                same_keys = (expect.key is None) == (earlier.key is None) and keys_overlap  # None: all keys
                # `none` for all keys and `none` for one key can both be true.
                is_zero = any(e.kind == "matches" and e.count == 0 for e in (expect, earlier))  # as `none` says
                contradict = "none" in kinds and keys_overlap and not is_zero and (len(kinds) > 1 or same_keys)
                if contradict or (kinds == {"matches"} and same_keys):
                    message = "these two cannot both be true" if len(kinds) > 1 else "this is expected twice"
                    labels = (Label(earlier.span, "the other one"),)
                    self.collector.add("CEP602", message, expect.span, "leave one of the two out", labels)
                    return


def _label_text(label: syntax.Literal | syntax.NameRef) -> str:
    return label.name if isinstance(label, syntax.NameRef) else str(label.value)


def _as_value(label: syntax.Literal | syntax.NameRef) -> syntax.ExprSyntax:
    """Return a label as a value: `true:` and `false:` cannot be written, but `"true":` can."""
    if isinstance(label, syntax.Literal) and label.value in ("true", "false"):
        return syntax.Literal(label.value == "true", label.span)
    return label
