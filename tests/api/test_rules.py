"""Rules from folders, files and texts, their errors, and the modules that `import cep` loads."""

from __future__ import annotations

import doctest
import subprocess
import sys
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cep
from cep.api import describe as describe_module
from cep.api import features as features_module
from cep.api import rules as rules_module
from cep.demo.library import library_folder
from cep.demo.stream import StreamSize, build
from tests.api.frames import EVENT, PATTERN, RULE, payments, write_rules

ROOT = Path(__file__).parents[2]


def test_a_rule_that_is_wrong_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    (folder / "broken.toml").write_text(
        RULE.replace('id = "small_then_large"', 'id = "broken"').replace("owner", "ownr")
    )
    (folder / "other.toml").write_text(
        RULE.replace('id = "small_then_large"', 'id = "other"') + "[params]\nsmall = true\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rules = cep.load(folder)
    assert tuple(str(warning.message) for warning in caught) == rules.problems
    assert [rule.id for rule in rules] == ["small_then_large"]
    assert any("$.ownr: no such name here" in problem for problem in rules.problems)
    assert "small_then_large version 1 (live, high) by card_id" in repr(rules)
    with pytest.raises(KeyError, match="other version 1 is set aside"):
        rules["other"]
    with pytest.raises(KeyError, match="did you mean small_then_large"):
        rules["small_then_larg"]


def test_nothing_in_force_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    with pytest.raises(cep.CepError, match=r"no rule that can be in force\n.*no rule files"):
        cep.load(tmp_path / "rules")
    with pytest.raises(cep.CepError, match="is not a folder"):
        cep.load(tmp_path / "gone")
    with pytest.raises(cep.CepError, match="CEP110"):
        cep.load(tmp_path / "gone.cep")


def test_rules_as_they_were_in_a_commit(tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (folder / "patterns.cep").write_text(EVENT + PATTERN.replace("amount > 500.00", "amount > 640.00"))
    now, before = cep.load(folder), cep.load(f"{folder}@HEAD")
    assert before.problems == ()
    assert before.match(payments(), cores=1).table.num_rows > now.match(payments(), cores=1).table.num_rows
    assert now.diff(before, payments(), cores=1).lost.num_rows > 0
    with pytest.raises(cep.CepError, match="no commit HEAD~7"):
        cep.load(f"{folder}@HEAD~7")
    with pytest.raises(cep.CepError, match="no commit HEAD"):
        cep.load(tmp_path / "gone@HEAD")


def test_mistakes_of_a_text_have_lines_and_carets() -> None:
    with pytest.raises(cep.CepError, match=r"(?s)error\[CEP\d+\].*amuont.*\^\^\^\^\^\^"):
        cep.parse(EVENT + PATTERN.replace("hit.amount", "hit.amuont"))
    with pytest.raises(cep.CepError, match="cannot import"):
        cep.parse('import "events.cep"\n' + PATTERN)


def test_programs_read_the_mistakes_of_a_text() -> None:
    with pytest.raises(cep.PatternError) as raised:
        cep.parse(EVENT + PATTERN.replace("hit.amount", "hit.amuont"))
    (mistake,) = raised.value.mistakes
    line = next(i for i, text in enumerate((EVENT + PATTERN).splitlines(), 1) if "hit.amount" in text)
    assert (raised.value.code, mistake["code"], mistake["span"]["line"]) == ("pattern", "CEP203", line)
    assert "amount" in mistake["help"]


def test_arguments_that_are_none(tmp_path: Path) -> None:
    rules = cep.parse(EVENT + PATTERN)
    with pytest.raises(cep.CepError, match="dedup: 'soon' is no time"):
        rules.match(payments(), dedup="soon")
    with pytest.raises(cep.CepError, match="control records change rules"):
        cep.load(tmp_path / "x.cep", control="c.jsonl")
    twice = rules.match(pq.read_table(_twice(tmp_path)), dedup="1 d", cores=1)
    assert twice.counters["duplicates"] == payments().num_rows
    assert twice.table.equals(rules.match(payments(), cores=1).table)


def _twice(folder: Path) -> Path:
    pq.write_table(pa.concat_tables([payments(), payments()]), folder / "twice.parquet")
    return folder / "twice.parquet"


def test_importing_loads_nothing_heavy() -> None:
    """`import cep` loads no heavy module. The library does not need Spark, Kafka, PostgreSQL or pandas."""
    code = (
        "import sys, cep\n"
        "heavy = {'numba', 'pyarrow', 'numpy', 'pydantic', 'narwhals'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
        "cep.load\n"
        "absent = {'pyspark', 'py4j', 'confluent_kafka', 'psycopg', 'rocksdict', 'pygls'}\n"
        "assert not absent & sys.modules.keys(), absent & sys.modules.keys()\n"
        "print(sorted(set(cep.__all__) - set(dir(cep))))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (process.stdout, process.returncode) == ("[]\n", 0), process.stderr


def test_every_public_name_is_there() -> None:
    assert all(getattr(cep, name) is not None for name in cep.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        cep.lod  # noqa: B018


def test_the_examples_of_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = build(11, StreamSize(cards_count=150, payments_per_card=12))
    pq.write_table(stream.payments, tmp_path / "payments.parquet")
    (tmp_path / "rules").symlink_to(library_folder() / "rules")
    monkeypatch.chdir(tmp_path)
    for module in (rules_module, describe_module, features_module):
        failed, tried = doctest.testmod(module, extraglobs={"cep": cep})
        assert failed == 0
        assert tried >= 3
