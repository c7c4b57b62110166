"""Lines of progress: the first at once, then one per interval, and none if no record was read."""

from __future__ import annotations

import io
import json
from collections import Counter

from cep.runners.embedded.reports import ProgressLines
from cep.runners.observe import Log, Observed


def test_one_line_a_while_says_what_came_since_the_last() -> None:
    written = io.StringIO()
    observed = Observed(60_000)
    totals = Counter({"records": 100, "events": 100, "alerts[a@1]": 7, "runs": 3})
    lines = ProgressLines(Log("json", written), 60_000, Counter(totals))
    lines.tell(observed, totals, 0.0)
    assert written.getvalue() == "", "it goes on, and nothing has come yet"
    more = Counter({"records": 11, "events": 10, "late_events": 1, "poison[wrong_value]": 1, "alerts[a@1]": 1})
    for second in range(200):
        if second != 150:
            totals += more
        lines.tell(observed, totals, float(second))
    for second in range(200, 400):
        lines.tell(observed, totals, float(second))
    log_lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["events"] for line in log_lines] == [10, 600, 600, 590, 190]
    assert log_lines[1] | {"time": ""} == {
        "time": "", "event": "progress", "events": 600, "alerts": 60, "events_so_far": 710, "runs": 3,
        "lag_records": None, "watermark": None, "late_events": 60, "poison[wrong_value]": 60,
    }  # fmt: skip


def test_the_sentence_names_what_is_wrong() -> None:
    written = io.StringIO()
    observed = Observed(60_000)
    observed.lagging({"payments[0]": 4_000})
    observed.finished(1, {}, 1_700_000_000_000)
    observed.note("sinks", "a delivery has taken 20 s so far")
    ProgressLines(Log("text", written)).tell(observed, Counter({"records": 5, "events": 5}), 1.0)
    assert written.getvalue() == (
        "5 events, 0 alerts; 5 events so far, 0 runs open, 4,000 records wait, watermark 2023-11-14T22:13:20.000Z, "
        "unhealthy: sinks\n"
    )
