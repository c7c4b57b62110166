"""The planted cases of a simulated day → labels, as a bank would have them: a file that `cep report --labels` reads.

Each planted fraud is an episode of several payments; its kind is the rule that should find it. The payments of a near
miss are labelled as honest.
Tested by: tests/demo/test_demo.py
"""

from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from cep.analysis.labels import read_labels
from cep.analysis.measure import Terms, measure_files
from cep.analysis.one_rule import Replays, one_rule, replay_for_charts
from cep.analysis.report import Report, report
from cep.demo.library import library_folder
from cep.demo.stream import Stream
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.sinks.csv_cells import write_csv
from cep.sources.pieces import read_pieces

LABELS_FILE = "labels.csv"
THRESHOLDS_OF = "card_testing"  # the rule of which other values of the parameters are replayed


def labels_of(stream: Stream) -> pa.Table:
    """Return a label for each payment of a planted case."""
    rows = [
        {"event_id": tx_id, "label": int(case.fires), "kind": case.rule_id, "episode": f"{case.rule_id} {number}"}
        for number, case in enumerate(stream.planted)
        for tx_id in case.tx_ids
    ]
    return pa.Table.from_pylist(rows)


def write_labels(stream: Stream, folder: Path) -> Path:
    """Write the labels into the folder. Return the file."""
    path = folder / LABELS_FILE
    write_csv(labels_of(stream), path)
    return path


def report_day(payments: Path, labels: Path, cores: int, console: Console) -> Report:
    """Measure the library's rules on the day. Raises: UsageError without the extra `charts`."""
    folder, terms = library_folder() / "rules", Terms(cores=cores)
    records, _ = read_rules(folder)
    measured = measure_files(deploy(records), payments, str(labels), terms, console)
    pieces_of = partial(read_pieces, payments)
    labels_of = partial(read_labels, str(labels), payments)
    replays = Replays(partial(one_rule, folder), pieces_of, labels_of, terms, console)
    return report(measured, pieces_of, thresholds=replay_for_charts(replays, measured.figures, (THRESHOLDS_OF,)))
