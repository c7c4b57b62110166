"""Situations whose answer a test elsewhere checks, since it needs several forms, a runner, or many seeds.

A row is right if the test is there; the test itself says whether the answer is.
"""

import re
from functools import partial
from pathlib import Path

from tests.answers import Row

_TESTS = Path(__file__).parents[1]
_GOLDEN = "lang/golden/diagnostics/"
# Section, situation, and the test below tests/, or the golden file of a message.
_TESTED = (
    ("A", "a history is cut anywhere and continued", "runners/test_to_the_end.py::test_a_history_is_cut_anywhere"),
    ("A", "the same on Spark", "runners/test_to_the_end.py::test_a_history_is_cut_anywhere_on_spark"),
    ("A", "replay, diff, backtest, report, why", "cli/test_replay.py::test_more_windows_close_at_the_end"),
    ("A", "the end of a history by lateness and --until", "step/test_step.py::test_where_a_history_ends"),
    ("B1", "a folder of naive and UTC files", "sources/test_tables.py::test_times_with_and_without_a_zone"),
    ("B2", "each directive of strptime", "columnar/test_times.py::test_a_form_reads_what_strptime_reads"),
    ("B3", "order to the microsecond in each form", "columnar/test_order.py::test_events_are_in_order_in_every_form"),
    ("B3", "in each runner", "runners/test_parity.py::test_events_of_one_millisecond_keep_their_order"),
    ("B3", "on a topic", "runners/test_arrival.py::test_a_topic_keeps_the_order_of_events_of_one_time"),
    ("B4", "INT96 of the year 8999",
     "sources/test_files.py::test_times_of_old_parquet_are_exact_and_far_ones_stay_far"),
    ("B4", "INT96 on Spark",
     "runners/test_replay.py::test_old_times_of_parquet_are_those_of_the_embedded_replay"),
    ("B8", "times that clocks skip count", "columnar/test_times.py::test_local_times_that_clocks_skip_are_counted"),
    ("B", "times of a record in two forms", "sources/test_public_sets.py::test_times_of_one_record_in_two_forms"),
    ("C", "comparisons as with fractions", "nfa/test_averages.py::test_comparisons_are_those_of_fractions"),
    ("C", "comparisons as in DuckDB", "nfa/test_averages.py::test_comparisons_are_those_of_sql"),
    ("C", "cep why prints what decides", "testing/test_values.py::test_printed_sides_prove_the_verdict"),
    ("D", "the table of conversions", "columnar/test_convert.py::test_each_cell_holds_in_each_form"),
    ("D", "--minor in each form", "columnar/test_convert.py::test_minor_units_are_read_alike_in_each_form"),
    ("D", "-0.0 as a label", "analysis/test_labels.py::test_a_zero_in_any_form_is_no_fraud"),
    ("R1", "damaged CSV is as in csv, or rejected",
     "sources/test_csv_damage.py::test_random_files_are_read_as_by_csv_or_rejected_by_line"),
    ("R1", "an open quote names its lines", "sources/test_csv_damage.py::test_damage_is_rejected_by_its_line"),
    ("R16", "lines before the names", "sources/test_csv_damage.py::test_lines_before_the_names_are_left_out"),
    ("D", "a bad line far down in a CSV",
     "sources/test_tables.py::test_a_line_with_too_few_fields_is_set_aside_alone"),
    ("D", "folders whose files differ", "sources/test_tables.py::test_types_that_change_from_file_to_file"),
    ("E1", "each form of JSON", "sources/test_csv_form.py::test_each_form_has_the_same_records"),
    ("E1", "cep run of a named CSV", "cli/test_rejected.py::test_a_job_reads_a_named_file_of_each_form"),
    ("E1", "all events ahead, in a job",
     "cli/test_rejected.py::test_events_ahead_of_the_clock_end_a_job_with_1"),
    ("E2", "each verb and form", "cli/test_rejected.py::test_a_verb_ends_with_1_and_says_why"),
    ("E2", "each call and frame", "cli/test_rejected.py::test_python_warns_or_raises"),
    ("E2", "a job on Spark", "cli/test_rejected.py::test_a_job_on_spark_ends_with_1_too"),
    ("E2", "a real kernel", "demo/test_wheel.py::test_a_real_kernel_shows_the_top_reason_of_rejected_records"),
    ("E5", "random greedy loops, by brute force",
     "corpus/test_corpus.py::test_a_greedy_loop_ends_with_the_event_that_it_cannot_take"),
    ("F", "one set in 25 forms of files", "sources/test_public_sets.py::test_each_verb_reads_a_file_by_its_draft"),
    ("F", "one set in 9 kinds of frames", "sources/test_public_sets.py::test_a_frame_is_read_by_its_draft"),
    ("F2", "delimiters and encodings", "sources/test_csv_form.py::test_each_form_has_the_same_values"),
    ("F3", "ULB, PaySim, IEEE-CIS, IBM, Sparkov",
     "sources/test_public_sets.py::test_the_draft_is_accepted_verbatim"),
    ("F3", "the same with nine verbs", "sources/test_public_sets.py::test_the_other_verbs_accept_it_too"),
    ("G1", "events of one time wait for each other",
     "step/test_event_time.py::test_events_of_one_time_wait_for_each_other_unless_one_partition_has_them_in_order"),
    ("G1", "ties are counted", "step/test_step.py::test_an_event_counts_if_it_stands_before_one_that_was_matched"),
    ("G2", "however the stream is cut",
     "step/test_duplicates.py::test_an_event_on_time_comes_once_however_the_stream_is_cut"),
    ("H", "raw errors of frames", "api/test_odd_frames.py::test_each_odd_column_alone"),
    ("H", "a symbol that begins with a digit", _GOLDEN + "CEP103_symbol.cep"),
    ("H", "a symbol with a hyphen, declared", _GOLDEN + "CEP105_symbol_with_a_hyphen.cep"),
    ("H", "a symbol with a hyphen, compared", _GOLDEN + "CEP201_symbol_with_a_hyphen.cep"),
    ("H", "a symbol in emit", _GOLDEN + "CEP201_symbol_in_emit.cep"),
    ("H", "by a, b", _GOLDEN + "CEP105_key_of_two_fields.cep"),
    ("H", "by m, a in a count", _GOLDEN + "CEP307_sub_key.cep"),
    ("H", "b+?", _GOLDEN + "CEP105_reluctant_loop.cep"),
    ("H", "a b", _GOLDEN + "CEP105_steps_without_operator.cep"),
    ("H", "PERMUTE(a, b)", _GOLDEN + "CEP105_permute.cep"),
    ("H", "first(a, 2).f", _GOLDEN + "CEP204_second_of_a_loop.cep"),
    ("H", "prev(a, 2).f", _GOLDEN + "CEP204_prev_of_two.cep"),
    ("H", "next(b).f", _GOLDEN + "CEP204_next.cep"),
    ("H", "case when", _GOLDEN + "CEP111_case_when.cep"),
    ("H", "interval '1' hour", _GOLDEN + "CEP111_interval.cep"),
    ("H", "within interval '1' hour", _GOLDEN + "CEP111_interval_of_a_window.cep"),
    ("H", "||", _GOLDEN + "CEP111_joined_texts.cep"),
    ("H", "running", _GOLDEN + "CEP111_running.cep"),
    ("H", "final", _GOLDEN + "CEP111_final.cep"),
    ("H", "files that are not there",
     "sources/test_csv_form.py::test_files_that_are_not_there_are_mistakes_of_the_caller"),
    ("Bench", "a draw and a part without fraud", "analysis/test_tune.py::test_equal_settings_differ_by_nothing"),
    ("Bench", "a report shows symbols", "analysis/test_drift.py::test_an_enum_is_shown_by_its_symbols"),
    ("Bench", "an old event and the days", "analysis/test_backtest.py::test_an_old_event_does_not_lengthen_the_days"),
)  # fmt: skip


def _there(test: str) -> str:
    """Return the test or the golden file if it is there, otherwise nothing."""
    file, _, name = test.partition("::")
    path = _TESTS / file
    is_there = path.is_file() and (not name or re.search(rf"^def {name}\(", path.read_text("utf-8"), re.MULTILINE))
    return test if is_there else ""


ROWS = [Row(section, situation, test, partial(_there, test)) for section, situation, test in _TESTED]
