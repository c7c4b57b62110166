"""The cost of loading rules by their number: processor seconds until `cep replay` reads the first event.

    python -m tests.bench.loading [RULES ...]        1, 100, 400 and 2000 by default

Each rule has its own pattern. The patterns are in one file, or each in its own file. `read` makes records of the
folder, `deploy` checks and compiles them, `link` puts the programs together.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from cep.lists.store import ListStore
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_lists, read_rules
from cep.step.programs import programs_by_level

PATTERNS = Path(__file__).parents[2] / "patterns"
COUNTS = (1, 100, 400, 2000)
PATTERN = """
## Pattern {0}.
pattern p{0}(tries: int = 3, small: decimal = 2.00, large: decimal = {1}.00, window: duration = 10 min)
  by card_id
{{
  seq    probe{{tries,}} greedy -> hit  within window
  where  probe: transaction  status == declined and amount < small
         hit:   transaction  status == approved and amount > large
  skip   past last
  emit   probes = count(probe), probed = sum(probe.amount), amount = hit.amount, country = hit.country
}}
"""
RULE = """
id = "r{0}"
pattern = "p{0}"
file = "../patterns/{1}.cep"
version = 1
status = "live"
severity = "low"
owner = "bench"
message = "m"
"""


def write(folder: Path, count: int, *, files: bool) -> Path:
    """Write so many rules and their patterns; return the folder of the rules."""
    (folder / "rules").mkdir(parents=True)
    (folder / "patterns").mkdir()
    (folder / "patterns" / "events.cep").write_text((PATTERNS / "events.cep").read_text())
    texts = [PATTERN.format(n, 500 + n) for n in range(count)]
    names = [f"f{n}" if files else "all" for n in range(count)]
    by_file: dict[str, str] = {}
    for n, (name, text) in enumerate(zip(names, texts, strict=True)):
        by_file[name] = by_file.get(name, 'import "events.cep"\n') + text
        (folder / "rules" / f"r{n}.toml").write_text(RULE.format(n, name))
    for name, text in by_file.items():
        (folder / "patterns" / f"{name}.cep").write_text(text)
    return folder / "rules"


def seconds(rules: Path) -> tuple[float, float, float]:
    """Return the processor seconds (read, deploy, link) of one load."""
    store, times = ListStore(), [time.process_time()]
    records, problems = read_rules(rules)
    lists, more = read_lists(rules, store)
    assert not problems
    assert not more
    times.append(time.process_time())
    deployment = deploy([*lists, *records], store)
    assert not deployment.set_aside
    times.append(time.process_time())
    programs_by_level(deployment.rulebook, deployment.schema)
    times.append(time.process_time())
    return times[1] - times[0], times[2] - times[1], times[3] - times[2]


def main(arguments: list[str]) -> None:
    """Print a line for each number of rules, in one file and in many."""
    print(f"{'rules':>6} {'files':>6} {'read':>7} {'deploy':>7} {'link':>7} {'all':>7}  ms a rule")
    for count in [int(a) for a in arguments] or COUNTS:
        for files in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                parts = seconds(write(Path(folder) / "load", count, files=files))
            figures = " ".join(f"{part:7.2f}" for part in (*parts, sum(parts)))
            print(f"{count:6} {count if files else 1:6} {figures}  {sum(parts) / count * 1000:9.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
