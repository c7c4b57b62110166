"""Spark's message about a failed query → our error in it, or Spark's reason without stacks and plans.

Our errors reach Spark as text when they are raised where it plans or executes in Python. Around that text Spark puts
Python's traceback, frames of Java and the plan of the query, which do not help an operator.
Tested by: tests/runners/spark/test_failures.py, tests/runners/spark/test_live_topic.py
"""

from __future__ import annotations

import re

from cep.base import errors
from cep.base.errors import CepError, SourceError

# The last line of a Python traceback, and the rest of our message, up to the text that Spark or Java append.
_OURS = re.compile(r"cep\.base\.errors\.(\w+): (.+?)\s*(?=\n\s*SQLSTATE|\n\s+at |\n===|\n\n|\Z)", re.DOTALL)
_PLAN = "\n=== Streaming Query ==="
_FRAME = re.compile(r"\s+at [\w.$/]+\(.*\)|\s*\.\.\. \d+ more")


def failure_of(java_text: str) -> CepError:
    """Return the error to raise for a query that failed with this text."""
    messages = _OURS.findall(java_text)
    if messages:
        name, message = messages[-1]  # of errors that came of each other the last is for the reader
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, CepError):
            error = kind.__new__(kind)  # without its constructor, because the message is complete already
            error.args = (message,)
            return error
    lines = java_text.partition(_PLAN)[0].splitlines()
    reason = [line for line in lines if line.strip() and not _FRAME.fullmatch(line)]
    return SourceError(
        "the query failed; it goes on from its checkpoint when started again: " + "\n".join(reason).strip()
    )
