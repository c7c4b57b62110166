"""`x is null or a comparison with x` has a fast form, which equals the condition as code, with nulls on both sides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import cep

EVENT = """event tx { tx_id id  event_time time  card string  amount decimal(2)?  rate float?  kind enum(a, b) }
"""
STEPS = ("up{3}", "up{2,} -> last", "first -> up{2}")
FIELDS = ("amount", "rate")


def pattern(name: str, steps: str, field: str, condition: str, skip: str) -> str:
    """Return a pattern whose loop has the condition."""
    more = {"up{2,} -> last": "  last: tx kind == b", "first -> up{2}": "  first: tx kind == a"}.get(steps, "")
    where = f"  up: tx {condition.format(x=f'up.{field}', y=field)}"
    return f"pattern {name} by card {{\n  seq {steps} within 1 h\n  where {more}\n {where}\n  skip {skip}\n}}\n"


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_form_equals_the_code(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {
            "tx_id": f"t{n}", "event_time": start + timedelta(seconds=n), "card": random.choice("xyz"),
            "amount": random.choice([None, 1.0, 2.0, 3.0, 4.0, 5.0]),
            "rate": random.choice([None, 0.5, 1.5, 2.5, 1e300]), "kind": random.choice("ab"),
        }
        for n in range(60)
    ]  # fmt: skip
    texts, names = [EVENT], list[str]()
    for steps in STEPS:
        for field in FIELDS:
            op, skip = random.choice(["<", "<=", ">", ">=", "==", "!="]), random.choice(["none", "past last"])
            name = f"p{len(names)}"
            names.append(name)
            fast = random.choice([f"{{x}} is null or {{y}} {op} {{x}}", f"{{y}} {op} {{x}} or {{x}} is null"])
            code = f"if {{x}} is null then true else {{y}} {op} {{x}}"
            texts += [
                pattern(f"{name}_fast", steps, field, fast, skip), pattern(f"{name}_code", steps, field, code, skip),
            ]  # fmt: skip
    (tmp_path / "p.cep").write_text("\n".join(texts))
    result = cep.load(tmp_path / "p.cep").match(pa.Table.from_pylist(rows))
    events: dict[str, list[str]] = {}
    for rule, alert in zip(result.table["rule_id"].to_pylist(), result.table["events"].to_pylist(), strict=True):
        events.setdefault(rule, []).append(str(alert))
    assert sum(map(len, events.values())) > 20
    for name in names:
        assert sorted(events.get(f"{name}_fast", [])) == sorted(events.get(f"{name}_code", [])), name
