"""The imports of Spark when it asks for a processor's state."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

from cep.rulebook.saved import RulebookStore
from cep.runners.spark.group_parts import MatchProcessor
from cep.runners.spark.match_stage import MatchStage
from cep.step.rules import JobRules
from tests.runners.spark.live_cases import make_job, rules

_LOADED = """
import pickle, sys
processor = pickle.loads(sys.stdin.buffer.read())
print(type(processor).__name__, *{"numba", "numpy", "pyarrow", "pandas"} & sys.modules.keys())
"""


def test_what_matches_is_not_loaded_to_ask_what_is_kept(tmp_path: Path) -> None:
    rules_by_id = rules("card_testing")
    job_rules = JobRules(make_job(rules_by_id.values()), (), RulebookStore(tmp_path))
    processor = MatchProcessor(partial(MatchStage, job_rules, 0, None, None))
    words = [sys.executable, "-c", _LOADED]
    ended = subprocess.run(words, input=pickle.dumps(processor), capture_output=True, check=True)
    assert ended.stdout.split() == [b"MatchProcessor"]
