"""The names of counters, gauges and log lines → one sentence each: for HELP texts on the port, and for the reference.

    events, poison[missing_field]  →  cep_events_total, cep_poison_total{code="missing_field"}

Labels stand in the brackets of a counter's name, with `@` between two of them: `alerts[card_testing@3]`.
Tested by: tests/docs/test_reference.py, tests/runners/test_observe.py
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

LABELS: Mapping[str, tuple[str, ...]] = {
    "poison": ("code",), "bad_values": ("code", "field"), "unkeyed": ("key",),
    "alerts": ("rule", "version"), "held": ("reason", "rule"),
    "alerts_delivered": ("sink",), "alerts_refused": ("sink",), "rule_events": ("rule", "version"),
    "rule_steps": ("rule", "version"),
    "rule_overflows": ("rule", "version"), "rule_runs": ("rule", "version"),
    "rule_runs_evicted": ("rule", "version"), "rule_matches_dropped": ("rule", "version"),
}  # fmt: skip

# Counters that stand at 0 before the first one is counted, so that a rate has a beginning and an alarm finds its name.
FROM_ZERO: Mapping[str, str] = {
    "records": "Records read, including records that cannot be decoded.",
    "events": "Records that could be decoded.",
    "flawed_events": "Events with a value that cannot be read; each is matched with null there, and is a dead letter.",
    "late_events": "Events below the watermark, set aside.",
    "ties_out_of_order": "Events that belong before an event of their millisecond that was already matched.",
    "records_gone": "Records deleted before they were read, which the job goes on without (`--accept-gap`).",
    "events_ahead": "Events dated too far ahead of the clock, set aside.",
    "duplicates": "Events that have come before, ignored.",
    "reused_ids": "Events with the id of another event of their type and keys, set aside.",
    "matches": "Matches completed, including shadow, suppressed and snoozed ones.",
    "runs_started": "Partial matches begun.",
    "runs_expired": "Partial matches that have ended without a match because their time was over.",
    "letters_left_out": "Dead letters not written, because a hundred equal ones of the same file or micro-batch were.",
    "runs_evicted": "Partial matches lost to the limit of a rule on one key.",
    "matches_dropped": "Matches lost to the limit of one event.",
    "deliveries_retried": "Failed attempts to reach an unavailable sink; the job tries again.",
    "alerts_refused": "Alerts that a receiver has refused for good, by sink; each is a dead letter.",
    "checkpoints_failed": "Checkpoints that could not be copied to their target.",
    "control_refused": "Control records refused; each is a dead letter.",
    "control_ahead": "Heartbeats dated too far ahead of the clock, refused.",
}

# As much for each code of a record that cannot be decoded: the first ones are to be seen.
POISON_CODES = ("unreadable", "unreadable_file", "missing_field", "wrong_value", "unknown_event_type", "too_long")

COUNTERS: Mapping[str, str] = {
    "alerts": "Alerts made, by rule, without suppressed alerts. Sinks get them after the commit.",
    "alerts_delivered": "Alerts that a sink has taken, by sink.",
    "poison": "Records that cannot be decoded, by code.",
    "bad_values": "Values that cannot be read, by code and field; each is null in its event.",
    "times_skipped": "Local times of events that the clocks of their zone skip, read with the offset before the skip.",
    "unkeyed": "Events without a value in a field of this key.",
    "rule_events": "Events that a rule looked at.",
    "rule_steps": "Partial matches that were offered an event, by rule: the cost of a rule.",
    "rule_overflows": "Values of a rule that do not fit into 64 bits; a value of several rules counts for "
    "each of them.",
    "rule_runs_evicted": "Partial matches lost to a limit of one key, by rule.",
    "rule_matches_dropped": "Matches lost to the limit of one event, by rule.",
    "timeouts": "Partial matches that gave an alert because their time was over.",
    "runs_orphaned": "Partial matches dropped because their rule is gone or cannot be matched any more.",
    "run_steps": "Partial matches that were offered an event.",
    "held": "Alerts that the rules suppressed, by reason and rule; each is recorded in the job's folder.",
    "fired_forgotten": "Rules and keys whose suppression or mark was forgotten early, at the limit.",
    "arithmetic_overflows": "Values that do not fit into 64 bits; each is the greatest or the least number instead.",
    "histories_folded": "Values computed from folded events.",
    "histories_cut": "Values of a sub-key that may lack forgotten events.",
    "history_values_dropped": "Values of a sub-key that were forgotten at the limit.",
    "events_produced": "Events made by patterns that feed patterns.",
    "origins_dropped": "Events of the source that alerts and produced events do not list, as there are too many.",
    "events_without_rule": "Events with a key that no rule in force reads.",
    "events_before_start": "Events from before the cut of a warm start, left to its replay.",
    "events_after_end": "Events after the cut of a replay, left to the job.",
    "control_applied": "Control records applied.",
    "control_ignored": "Control records of an older or equal version.",
    "control_conflict": "Control records refused because another change was first.",
    "control_unverified": "Control records refused because signatures are missing or do not count.",
    "control_waiting": "List changes that wait for the version before them, and pauses that wait for their rule.",
    "control_unreadable": "Control records that cannot be read.",
    "control_heartbeat": "Heartbeats.",
    "rule_late_ms": "Milliseconds by which changes of rules came too late, in all.",
}

# Counters of normal work. Every other counter reports a refusal, a record set aside, a loss or an omission, and is
# shown with the losses. A new counter is therefore visible until it is added here.
_ORDINARY = frozenset((
    "records", "events", "alerts", "alerts_delivered", "matches", "runs_started", "runs_expired", "timeouts",
    "run_steps", "rule_events", "rule_steps", "rule_late_ms", "histories_folded", "events_produced", "control_applied",
    "control_heartbeat", "control_ignored", "control_waiting",
))  # fmt: skip
LOSSES = tuple(name for name in (*FROM_ZERO, *COUNTERS) if name not in _ORDINARY)

# Totals that rise and fall.
TOTALS_THAT_FALL: Mapping[str, str] = {
    "runs": "Partial matches alive.",
    "rule_runs": "Partial matches alive, by rule; without those in a first step that several rules share.",
}

GAUGES: Mapping[str, str] = {
    "state_bytes": "Bytes of keyed state, on disk and written to memory.",
    "memory_bytes": "Bytes that a part of `cep run` has in memory: pages, page_index, past, event_ids, store, "
    "undelivered, changelog.",
    "disk_free_bytes": "Bytes free on the disk of the checkpoint folder.",
    "live": "1 while the job makes progress, 0 if it is stuck or has failed, like `/live`.",
    "uncheckpointed_seconds": "Seconds for which commits have been only on this disk; of `cep run`.",
    "undelivered_alerts": "Alerts and dead letters that wait for a sink.",
    "sink_waiting_alerts": "Alerts that wait for a sink, by sink.",
    "sink_oldest_alert_seconds": "Age of the oldest alert that waits for a sink, in seconds; 0 if none waits.",
    "watermark_delay_seconds": "Time by which the watermark lags the clock, in seconds.",
    "micro_batch_id": "The latest micro-batch that is done.",
    "micro_batch_seconds": "Duration of the latest micro-batch, by phase.",
    "standby": "1 while a process of `cep run --standby` waits, 0 while it works.",
    "lag_records": "Records of a partition that wait to be read.",
    "part_up": "1 if this part of the job is well, otherwise 0: brokers, events, records, sinks, checkpoints, disk.",
    "sink_up": "1 if a sink takes alerts, 0 if it does not, with the reason.",
    "abandoned_alerts": "Alerts that waited for a sink when the job lost it, and that no new sink takes over, by sink.",
}
GAUGE_LABELS: Mapping[str, tuple[str, ...]] = {
    "micro_batch_seconds": ("phase",), "memory_bytes": ("part",), "lag_records": ("partition",), "part_up": ("part",),
    "sink_up": ("sink", "address", "reason"), "sink_waiting_alerts": ("sink",), "sink_oldest_alert_seconds": ("sink",),
    "abandoned_alerts": ("sink",),
}  # fmt: skip

HISTOGRAMS: Mapping[str, str] = {
    "alert_latency_seconds": "Seconds from the event time at which a match became certain until sinks had its alert.",
}

LOG_LINES: Mapping[str, str] = {
    "rule_file_refused": "A rule file cannot be used; the job starts without it.",
    "rule_set_aside": "A rule cannot be matched; the others continue.",
    "rules_differ": "The folder of rules differs from the job's rules.",
    "change_taken": "A change of a rule, pause, snooze or list: its version and hash, who sent it and why.",
    "rules": "The rules in force, at the start and after each change.",
    "runs_of_before": "A version begins: how many runs of the one before are carried, drained or restarted, and why.",
    "compiling": "Kernels are compiled, once after an installation.",
    "changelog": "State is read from the changelog topic: the position so far.",
    "standby": "A process of `cep run --standby` waits, while another one works.",
    "standby_ready": "A standby has read the state of the job so far.",
    "took_over": "A standby has the lease now; the time for which it waited.",
    "started": "The job has its state and its sources, and begins to read.",
    "progress": "A minute's work of `cep run`: events, alerts, dead letters, lag and watermark.",
    "query_restarts": "Brokers did not answer the query of `cep live`, which starts again after a pause.",
    "micro_batch": "A micro-batch of `cep live` in which something happened.",
    "nothing_read": "A job with `--available-now` has found no record.",
    "rejected": "How many records were rejected since the last such line, by code and field; at the end: in all.",
    "unhealthy": "A part of the job is in trouble: which part, and why.",
    "healthy": "A part is well again; the time for which it was in trouble.",
    "sink_away": "A sink takes no alerts: its name, its address and the reason, a word of `cep_sink_up`.",
    "sink_back": "A sink takes alerts again; the time for which it did not.",
    "alerts_refused": "A receiver has refused alerts for good: which sink, how many and why.",
    "checkpoint_failed": "A checkpoint was not copied to its target; the job continues without it.",
    "checkpoint_refused": "A store or checkpoint was skipped at the start, and why.",
    "letters": "The folder of dead letters.",
    "traces": "A message of the library that sends traces, such as that no collector answers.",
    "abandoned": "Alerts wait for a sink that the job no longer has, and there is no new sink: how many are not sent.",
    "undelivered": "A stopped job has alerts that sinks did not take: the number that the next start sends.",
    "ended": "The totals at the end.",
}


def counter_text(name: str) -> str:
    """Return the sentence of a counter, by its name without brackets."""
    return FROM_ZERO.get(name) or COUNTERS.get(name) or f"Counter {name}."


def is_loss(name: str) -> bool:
    """Return True if a counter, with its labels or without, tells of something that did not get through."""
    return name.partition("[")[0] in LOSSES


def is_in_lines(name: str) -> bool:
    """Return True for a total in the lines of a live job: losses, except those by rule, and changes of rules."""
    base = name.partition("[")[0]
    return base.startswith("control_") or (base in LOSSES and base != "held" and not base.startswith("rule_"))


def open_runs(totals: Mapping[str, int]) -> dict[str, int]:
    """Return the open runs by rule and version, as `card_testing@3`; none that is negative after an update."""
    falls = "rule_runs["
    return {name[len(falls) : -1]: count for name, count in totals.items() if name.startswith(falls) and count > 0}


def forget_open_runs(totals: Counter[str], status: Mapping[str, Any]) -> None:
    """Remove the counts of open runs of versions that the status of the rules does not have any more."""
    there = {f"rule_runs[{rule['rule_id']}@{rule['version']}]" for rule in status["rules"]}
    for name in [name for name in totals if name.startswith("rule_runs[") and name not in there]:
        del totals[name]


def current_names(totals: Mapping[str, int]) -> Counter[str]:
    """Return totals under the names of this build; an earlier one wrote `held[shadow][card_testing]`."""
    renamed: Counter[str] = Counter()
    for name, count in totals.items():
        renamed[name.replace("][", "@")] += count
    return renamed
