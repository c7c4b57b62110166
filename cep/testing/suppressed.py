"""The rules of a job and the events of one key → their matches without an alert, and the reasons.

The engine and the policies are the same as in every runner (rulebook/suppression.py), so the answer equals a replay.
Tested by: tests/cli/test_why.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import EventBatch
from cep.columnar.route import KeyDomain
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.nfa.compile import compile_rules
from cep.rulebook.deploy import Deployment
from cep.rulebook.suppression import EXCLUDED, SHADOW, SNOOZED, SUPPRESSED, Policies, suppress_alerts

_WORDS = {
    SHADOW: "the version is in shadow: what it finds is recorded and alerts nobody",
    SNOOZED: "the rule was snoozed at that time",
    EXCLUDED: "another rule of its exclusive group fired on the same event",
    SUPPRESSED: "the rule had alerted on this key less than its `suppress` before",
}


def suppression_reasons(
    deployment: Deployment, domain: KeyDomain, batch: EventBatch, late: frozenset[str] = frozenset(),
    end_ms: int = TIME_MS_MAX,
) -> dict[tuple[str, int, tuple[str, ...]], str]:  # fmt: skip
    """Match the events of a key again, and return why each suppressed alert was suppressed.

    Returns: the reasons by rule, version and the ids of the events. `late` are the ids of events that were not matched;
    `end_ms` is the watermark at the end of the events.
    """
    batch = batch.take(~np.isin(np.array(batch.event_id.to_pylist(), object), list(late)))
    rules = deployment.rulebook.domains().get(domain, ())
    if not rules or not len(batch):
        return {}
    program = replace(compile_rules(deployment.schema, domain, rules), lists=deployment.rulebook.lists.timelines())
    alerts = alert_table(program, advance(program, None, batch, end_ms, is_end=True).matches)
    suppression = suppress_alerts(alerts, Policies.of(deployment.rulebook), {})
    return {
        (a["rule_id"], a["version"], tuple(event["event_id"] for event in a["events"])): _WORDS[reason]
        for a, reason in zip(suppression.suppressed.to_pylist(), suppression.reasons, strict=True)
        if a["kind"] == "match"
    }
