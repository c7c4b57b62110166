"""One sentence for each field of an alert and for counters that the code counts without a text.

The test of the reference refuses a name that the code does not have, and a counter of the code that has no sentence.
Tested by: tests/docs/test_reference.py
"""

from __future__ import annotations

ALERT_FIELDS = {
    "alert_id": "128 bits of a digest over rule, version, key and bound events, as 32 hexadecimal digits",
    "rule_id": "the rule",
    "version": "the version of the rule that found it",
    "epoch": "the number of changes that the job had applied when this version came",
    "status": "`live`, or `shadow` in the records of suppressed alerts",
    "severity": "as in the rule file",
    "priority": "alerts of one event come out in this order, the smallest first",
    "score": "as in the rule file",
    "kind": "`match`, or `timeout` for what `on timeout emit` gives",
    "key": "the key, such as the card; fields of a key of several have U+001F between them",
    "message": "the rule's sentence with its names filled in",
    "description": "the `##` lines of the pattern",
    "measures": "the values of `emit`, as a JSON object",
    "events": "the bound events in order",
    "history_cut": "a condition asked for a value of a sub-key whose events may be forgotten",
    "history_folded": "a condition looked at a window whose older events are summed up",
    "history_from": "the time since when the past is complete, if a condition looked back further",
    "match_start": "event time of the first bound event",
    "match_end": "event time of the last bound event",
    "detected_at": "event time at which the match became certain",
    "content_hash": "the meaning of the rule's version, as `cep rules history` knows it",
}

COUNTERS = {
    "alerts": "Alerts sent.",
    "poison": "Records that cannot be decoded, by code.",
    "unkeyed": "Events without a value in a field of this key.",
    "rule_events": "Events that a rule looked at.",
    "rule_steps": "Partial matches that were offered an event, by rule: what a rule costs.",
    "rule_overflows": "Values of a rule that do not fit into 64 bits; one of several rules counts for each.",
    "rule_runs_evicted": "Partial matches lost to a limit of one key, by rule.",
    "timeouts": "Partial matches that gave an alert because their time was over.",
    "runs_orphaned": "Partial matches dropped because their rule is gone or cannot be matched any more.",
    "run_steps": "Partial matches that were offered an event.",
    "held": "Alerts suppressed, by reason and rule.",
    "fired_forgotten": "Rules and keys whose time of suppression was forgotten early, at the limit.",
    "arithmetic_overflows": "Values that do not fit into 64 bits; each is the greatest or the least number instead.",
    "histories_folded": "Values worked out from folded events.",
    "histories_cut": "Values of a sub-key that may lack forgotten events.",
    "history_values_dropped": "Values of a sub-key that are no longer remembered, at the limit.",
    "events_produced": "Events made by patterns that feed patterns.",
    "events_without_rule": "Events with a key that no rule in force reads.",
    "events_before_start": "Events from before the cut of a warm start, left to its replay.",
    "events_after_end": "Events behind the cut of a replay, left to the job.",
    "control_applied": "Control records applied.",
    "control_ignored": "Control records of an older or equal version.",
    "control_refused": "Control records refused; each is a dead letter.",
    "control_unverified": "Control records refused because signatures are missing or do not count.",
    "control_waiting": "List changes that wait for the version before them.",
    "control_unreadable": "Control records that cannot be read.",
    "control_heartbeat": "Heartbeats.",
    "control_ahead": "Heartbeats dated too far ahead of the clock, refused.",
    "rule_late_ms": "Milliseconds by which changes of rules came too late, in all.",
    "checkpoints_failed": "Checkpoints that could not be brought to their target.",
}

GAUGES = {
    "state_bytes": "Bytes of keyed state.",
    "watermark_delay_seconds": "How far the watermark is behind the clock.",
    "micro_batch_id": "The latest micro-batch that is done.",
    "micro_batch_seconds{phase}": "How long the latest micro-batch took, by phase.",
}
