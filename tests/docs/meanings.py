"""One sentence for each field of an alert, for the reference. The sentences for counters and gauges are in the package.

Tested by: tests/docs/test_reference.py
"""

ALERT_FIELDS = {
    "alert_id": "128 bits of a digest over rule, version, key and bound events, as 32 hexadecimal digits; over the "
    "variables too, if another match binds the same events to other variables",
    "rule_id": "the rule",
    "version": "the version of the rule that found it",
    "epoch": "the number of changes that the job had applied when this version came",
    "status": "`live`, or `shadow` in the records of suppressed alerts",
    "severity": "as in the rule file",
    "priority": "alerts of one event come out in this order, the smallest first",
    "score": "as in the rule file",
    "kind": "`match`, or `timeout` for a result of `on timeout emit`",
    "key": "the key, such as the card; fields of a key of several have U+001F between them",
    "message": "the rule's sentence with its names filled in",
    "description": "the `##` lines of the pattern",
    "measures": "the values of `emit`, as a JSON object",
    "events": "the bound events in order",
    "origins": (
        "the first 500 source events from which patterns have produced bound events: the place of the bound event "
        "(from 0), and the variables of all matches in between. Level 2 is the match that produced the bound event"
    ),
    "history_cut": "a condition asked for a value of a sub-key whose events may be forgotten",
    "history_folded": "a condition looked at a window whose older events are summed up",
    "history_from": "the time from which the past is complete, if a condition looked back further",
    "unconfirmed": "the history ended before the alert was certain; only `--to-the-end` gives such alerts",
    "flawed": (
        "the key had an event with an unreadable value in the 7 days before; a rule saw null in its place. "
        "`Rules.match_stream` does not set it"
    ),
    "match_start": "event time of the first bound event",
    "match_end": "event time of the last bound event",
    "detected_at": "event time at which the match became certain",
    "content_hash": "hash of the meaning of the rule's version, as in `cep rules history`",
}
