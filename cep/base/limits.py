"""Every limit of the engine, with its reason and its effect.

Tested by: tests/base/test_limits.py and the tests of the code that hits a bound
"""

# Times are int64 ms, UTC. The ends stand for "since ever" and "for ever"; sums with a window must not wrap.
TIME_MS_MIN = -(2**61)
TIME_MS_MAX = 2**61
# Event times from 0001-01-01 to 9000-01-01; other records are set aside. A window may end after the event, and the
# times of its alert must be dates.
EVENT_TIME_MS_MIN = -62_135_596_800_000
EVENT_TIME_MS_MAX = 221_845_392_000_000

# A larger pattern file is refused before it is read: it is probably a wrong path.
SOURCE_BYTES_MAX = 1_048_576
# Depth of nesting of groups and expressions: the parser recurses, and a file must never end the process.
NESTING_MAX = 64
# Diagnostics shown for one file: beyond that the first mistake is the one that matters.
DIAGNOSTICS_MAX = 100

VARIABLES_MAX = 64  # of one pattern; a reader loses the thread long before
PARAMS_MAX = 64
# NFA states of one rule after groups have been unrolled; a state number is an int16 in stored runs.
NFA_STATES_MAX = 1_024
# A run keeps the waits of its state as bits of one int64, next to two flags. The remaining bits are for stop events
# that may end the greed of a loop. Waits and such stop events together are at most 61.
WAITS_PER_STATE_MAX = 60
# A bound of a loop, `a{n,m}`; loops over one variable count in a register, groups are unrolled.
REPETITIONS_MAX = 100_000
# Registers of one run: counters, sums and remembered events; bounds the bytes of a run.
REGISTERS_MAX = 62
# Measures of one pattern: the null flags of a match are bits of one int64.
MEASURES_MAX = 62

# Runs of one rule on one key, an attack or a mistake in the rule. At the limit the oldest runs are dropped;
# `runs_evicted` and `rule_runs_evicted` count them. An event is offered to each run, about 5 to 50 ns: a hundred
# thousand events of one key then cost a few times as much as events of different keys.
RUNS_PER_KEY_MAX = 1_000
# Events bound by the runs of one rule on one key; each step counts once, however many runs share it: 24 bytes each, 0.6
# MB. A run takes at most 600 bytes, so both limits together are 1.2 MB, plus the fields of bound events that the rule
# reads. Beyond the limit the oldest runs are dropped until half of it is left, and counted as above.
NODES_PER_KEY_MAX = 25_000
# Bytes of the texts of a bound event (its id, and the texts that rules read later) for which it counts once more above:
# the texts of one rule's runs on one key take at most 13 MB. If several rules share a prefix, each start counts once.
NODE_TEXT_BYTES = 256
# Matches completed by one event, per rule, about 250 bytes each; the rest are dropped. `matches_dropped` and
# `rule_matches_dropped` count them. No analyst reads a hundred alerts of one payment.
MATCHES_PER_EVENT_MAX = 100
# The same before equal bindings are merged: a repeated group, for example, finds a match in several ways.
WAYS_PER_EVENT_MAX = 1_000
# Matches, and their bound events, that are computed together: 20 and 80 MB. Beyond the limit, events are matched in
# slices, one half and then the other, with the same result.
MATCHES_AT_ONCE_MAX = 262_144
BINDINGS_AT_ONCE_MAX = 4_194_304
# Bytes of a text in a field of an event, of an id too. It is in memory and state for each run that has bound it; a
# longer one is null, with the code `too_long`.
FIELD_BYTES_MAX = 65_536
# The file of keys for card numbers: some keys in turn, each a line. A larger file is a wrong path.
SECRETS_FILE_BYTES_MAX = 65_536
SECRETS_MAX = 32
# A secret shorter than this could be tried out: the numbers of cards are few, so the secret is all that protects them.
SECRET_CHARS_MIN = 32
# Digits of a card number (ISO/IEC 7812), its check digit among them.
PAN_DIGITS_MIN = 12
PAN_DIGITS_MAX = 19

DECIMAL_SCALE_MAX = 18  # a decimal has 18 digits in all, which fit into 64 bits

# Key groups: the unit of distribution and rescaling, and the upper bound of the parallelism.
KEY_GROUPS_DEFAULT = 128
# For a running job: each key group costs calls of the state store in every micro-batch.
KEY_GROUPS_LIVE_DEFAULT = 32
KEY_GROUPS_MAX = 32_768
# How long a partition that was read to its end holds back the watermark, if it gets no records or lags the clock.
IDLE_MS_DEFAULT = 10_000

# How far, in event time beyond the lateness, a partition with a backlog is read ahead of the slowest one: its events
# only wait. One hour, because pausing a partition discards its fetched records, and few partitions are so far apart.
READ_AHEAD_MS_MAX = 3_600_000
# A partition with a backlog is read to the time that one in so many of its records reaches, so fewer events of another
# time do not move it. The job judges this once for so many records: until then they wait.
SUPPORT_SHARE = 10
SUPPORT_RECORDS_MIN = 1_000
# Parts into which records are divided by their times, and parts that are remembered until there are enough records.
SUPPORT_PARTS = 20
SUPPORT_PARTS_MAX = 64
# How far ahead of the clock an event or a heartbeat may be dated; later ones are set aside. Clocks of producers are
# wrong by seconds, and one event of another year would make all others late.
AHEAD_MS_DEFAULT = 60_000
# How long, in event time, ids of events are remembered: a producer sends a record again within minutes. Each id costs
# some 40 bytes in memory and 16 in state for this long.
DEDUP_MS_DEFAULT = 600_000
# The percentage of records that may be set aside, or have an unreadable value, before a verb ends with 1. More bad
# records than that are usually a wrong column, zone or unit.
REJECTED_PERCENT_MAX = 1

# A control record larger than this is refused: rules are a few kB, the topic's own limit is 1 MB.
CONTROL_RECORD_BYTES_MAX = 1_048_576
# One JSON record, of a file, a stream or a topic. A longer one is set aside, and no more of it comes into memory.
RECORD_BYTES_MAX = 16_777_216
# For a table that is read at once, with its dictionaries expanded: a thousand records with the longest text. If rows
# take more, fewer of them are read at a time.
BATCH_BYTES_MAX = 67_108_864
# One page of Parquet, unpacked: packed, it may be some kB. Writers make pages of a megabyte. A file with a larger one
# is set aside.
PARQUET_PAGE_BYTES_MAX = 268_435_456
# Pages of one column of a row group: a gigabyte, a kilobyte each. A file with more is set aside.
PARQUET_PAGES_MAX = 1_048_576
# Texts of a dictionary whose lengths are read one by one, to find the longest. In a larger one, the texts that are not
# empty may be one text: fewer rows are read at once.
PARQUET_DICTIONARY_TEXTS_MAX = 262_144
# The header of a page: sizes, and the least and the largest value. A file with a longer one is set aside.
PARQUET_HEADER_BYTES_MAX = 1_048_576
# Rows of a file of Parquet for each of its bytes. An event takes some bytes. Equal rows take almost none, and each
# would be a record, with an alert or a dead letter of 300 bytes. A file with more is set aside.
PARQUET_ROWS_PER_BYTE_MAX = 4
# Equal dead letters of a piece of a file or of a micro-batch. Further ones are not written; `letters_left_out` counts
# them.
EQUAL_LETTERS_MAX = 100
# One line of alerts, dead letters or audit that a verb reads back. An alert has every event that it binds.
LINE_BYTES_MAX = 268_435_456
# One of the JSON files of a job: its settings, first rules, totals, rules in force. A rule takes some kilobytes.
JOB_FILE_BYTES_MAX = 1_073_741_824
# Rule ids that a rulebook knows, the retired ones too: it must remember their last version.
RULES_MAX = 10_000
# Versions of one rule that wait for their start or drain at one time; the next one is refused until some are done.
VERSIONS_PER_RULE_MAX = 64
# Versions of one rule or list whose hashes a job shows in its status: a publisher reads its answer within a second.
CHAIN_VERSIONS_MAX = 8
# Above this, versions count up one by one; a number from a date or a clock lies below it. Without it, one record of the
# highest version would end a name for good.
VERSION_FREE_MAX = 2_100_000_000
# Versions of a rule or list, and pauses of a rule, in a history or when a job begins: before the first event none is
# over.
CHANGES_BEFORE_EVENTS_MAX = 100_000
# Compiled rules that a process caches: a few kB each. Beyond the limit the oldest are compiled again when needed.
PIECES_CACHED_MAX = 20_000
# Constants, columns, conditions and instructions that compiled rules share. The entries of removed rules stay, so
# beyond the limit all are dropped and the rules in force are compiled again.
SYMBOLS_MAX = 262_144
# Micro-batches of a live job that it can go back by: as many as Spark keeps (spark.sql.streaming.minBatchesToRetain).
MICRO_BATCHES_RETAINED = 100
# Pauses of one rule, and snoozes of one rule and key, that are not over yet.
PAUSES_PER_RULE_MAX = 64
SNOOZES_MAX = 10_000  # rules and keys with a snooze; past this a snooze is refused until some are over
# Rules and keys whose last alert may suppress the next one, about 300 bytes of memory each. At the limit the entries
# that expire first are forgotten, and `fired_forgotten` counts them: the next alert of such a key is sent.
FIRED_MAX = 1_000_000
# An alert is `flawed` if its key had an event with an unreadable value so long before: few frauds take longer.
MARK_MS = 7 * 86_400_000
# Keys of a job that had such an event, among the entries above: a noisy producer must not push out the entries that
# suppress alerts. At the limit, further keys get no mark, and `fired_forgotten` counts them.
MARKS_MAX = 500_000
RULE_FILE_BYTES_MAX = 65_536  # one rule file of rules/; the pattern's text is not in it
FIGURES_FILE_BYTES_MAX = (
    67_108_864  # the output of `cep backtest --json` for a chart; a day and rule take about 60 bytes
)
SETTINGS_FILE_BYTES_MAX = 1_048_576  # a settings file; a wrong path gives a larger one
LOCK_FILE_BYTES_MAX = 67_108_864  # rules.lock: a line of 80 bytes for each version of each rule
# Parts of one dotted name in a TOML file. Ours have two; the parser's time grows with the square of them.
TOML_NAME_PARTS_MAX = 16
# One message of an editor to the language server: many times the largest pattern file, as JSON.
EDITOR_MESSAGE_BYTES_MAX = 67_108_864
# A file with the records of a control topic, one a line. It is read whole; a year of daily changes is far below.
CONTROL_FILE_BYTES_MAX = 1_073_741_824
RULE_ID_CHARS_MAX = 64
RULE_TEXT_CHARS_MAX = 1_000  # message, owner, runbook
RULE_SCORE_MAX = 1_000
RULE_PRIORITY_MAX = 10_000

# One wait for a Kafka broker (metadata, offsets, the next record of a planned range). Broker fail-over takes seconds;
# beyond this the operation fails, and the runner decides about a restart.
KAFKA_WAIT_MS_MAX = 30_000
# Between two looks of a job at its brokers, and the wait for an answer: one that is away is seen within three of them.
WATCH_MS = 5_000
# From the stop request to the end of the process; platforms allow more. In its first part the job waits for its sinks
# and its checkpoint, as long as they answer.
STOP_MS_MAX = 4_000
STOP_DELIVERY_MS_MAX = 2_000
# How long a sink may take for a delivery before the job counts as unhealthy.
SENDING_MS_MAX = 5_000
# Alerts and dead letters that wait for a sink, and their bytes in memory: an hour of 250 alerts a second. At the limit
# the job reads nothing more until the sink has taken some.
UNDELIVERED_MAX = 1_000_000
UNDELIVERED_BYTES_MAX = 536_870_912
# Alerts of one delivery from a backlog: a request or a transaction of some 20 MB. One commit is never divided.
DELIVERY_ALERTS_MAX = 20_000
# Free on the disk of the checkpoint folder below which a job counts as unhealthy: a full one ends it.
DISK_FREE_BYTES_MIN = 268_435_456
# Between two lines of `cep run` that say how far it is: a day of them is a page.
PROGRESS_LINES_MS = 60_000
# One record of a changelog; and one part of a store's entry there (a page, the alerts of a commit), which stays well
# below it with its key.
CHANGELOG_RECORD_BYTES_MAX = 16_777_216
CHANGELOG_PART_BYTES = 8_388_608
# Parts of one entry, or of one list: some gigabytes. A topic that announces more is refused before room is made.
CHANGELOG_PARTS_MAX = 4_096
# Silence of a process after which a standby takes its place: the least that brokers allow by default
# (`group.min.session.timeout.ms`). A standby that takes over too early costs a restart, and no alert.
LEASE_MS = 6_000
LEASE_CONFIRM_MS = 1_000  # between two signs that the lease is still here: one may be lost
# Idle Kafka consumers kept by a process between micro-batches, one per use at a time; past this the oldest is closed.
KAFKA_IDLE_CONSUMERS_MAX = 4

# Nodes of one expression after definitions are written out: definitions that use each other double fast.
EXPRESSION_NODES_MAX = 20_000
REGEX_CHARS_MAX = 500  # of a regular expression; the memory of its automaton grows with it
# Patterns between the source and an event: each is another pass over the history, and another shuffle.
PRODUCE_DEPTH_MAX = 8
# Gaps of the producers that a rule reads from, one by one. Beyond the limit they count as the last of them, with an
# unlimited gap: `history_from` may then be later than necessary, never too early.
PRODUCER_GAPS_MAX = 256
IMPORTS_MAX = 256  # files that one file draws in
# Entries of folders that an editor's request searches for pattern files, so that opening `/` takes only a moment.
FOLDER_ENTRIES_MAX = 20_000

# Events of one test block, repetitions counted; more is a load test, and every one of them is explained in memory.
TEST_EVENTS_MAX = 10_000
# Events offered to runs in one trace of `cep test` or `cep why`: a few seconds of plain Python.
TRACE_STEPS_MAX = 500_000
# Frauds of a report that are walked through each pattern, evenly over all: enough for shares to a few percent.
REPORT_FRAUDS_WALKED_MAX = 300
# Events of the keys of walked frauds, over all rules: about three seconds of plain Python, in a report on any history.
REPORT_EVENTS_WALKED_MAX = 30_000
# Bytes of the page of a report: it is sent by mail and opened on a telephone. A larger one is made with less detail.
REPORT_BYTES_MAX = 1_000_000
# Events of a history in which a report replays the values of a rule's parameters without being asked: some seconds.
REPORT_REPLAYED_EVENTS_MAX = 100_000
# Events that `cep rules suggest` mines, three quarters of them of keys with frauds. Each window and pattern looks at
# them some ten thousand times: minutes on one core.
SUGGEST_EVENTS_MAX = 50_000
# Steps of a suggested sequence: of longer ones a history has too few to tell them from chance.
SUGGEST_STEPS_MAX = 5
# Settings of a rule that `cep rules tune` replays together: their programs and alerts are in memory at the same time.
TUNE_RULES_AT_ONCE = 64
# Alerts of the loosest setting of a tuned rule that are in memory: with more, fewer settings are replayed at once.
TUNE_ALERTS_MAX = 1_000_000
# Settings that `cep rules tune` compares by replaying each, if a replay for each value does not suffice, and values
# that `cep report --thresholds` draws.
TUNE_REPLAYED_MAX = 256
# Settings that `cep rules tune` compares at all: some arrays of this length for each part of the time.
TUNE_SETTINGS_MAX = 1_000_000
# Looks of `cep test --watch` at the files, half a second apart: a day; a forgotten terminal does not run for ever.
WATCH_POLLS_MAX = 172_800
# Estimated keyed state of a busy key above which `cep lint` asks whether that is meant: a hundred thousand busy keys on
# one worker are then 5 GB.
STATE_BYTES_PER_KEY_BUDGET = 49_152
PLAN_EVENTS_PER_KEY = 100  # events of a busy key in one window, for estimates

STORE_KEY_BYTES_MAX = 4_096  # of one store key; the longest key of an event is far below
# One block of a file of entries: the largest value of a store and some room; a larger length is a damaged one.
ENTRY_BLOCK_BYTES_MAX = 2_147_483_647
# The list of files of a RocksDB store, which starts a new one at a gigabyte.
STORE_MANIFEST_BYTES_MAX = 2_147_483_647
# Files that one RocksDB store holds open; past this it closes the least used. Far below a system's usual 1 024.
STORE_OPEN_FILES_MAX = 256
CHECKPOINTS_RETAINED_DEFAULT = 3  # the newest, and two to fall back to when a file of it is damaged
# Checkpoints that are being copied at one time; a further one is not begun, so that a slow target cannot pile up links.
CHECKPOINTS_PENDING_MAX = 2

# Source events of an alert's or a derived event's derived events, whose texts stay in state as long as a run.
# `origins_dropped` counts the rest.
ORIGINS_MAX = 500

# A long window is kept by stretches of time, panes, of which it reaches into one more than this. Its far edge is
# rounded outwards to a pane: by 1.6 % of the window at most.
HISTORY_PANES = 64
# Distinct values that `approx_distinct` counts exactly. Beyond the limit this many least hashes represent all: a
# standard error of 1 / sqrt(1 022), 3.1 %, in 8 kB of hashes.
DISTINCT_HASHES_MAX = 1_024
# Past events of one history on one key, the newest ones of its window, from which its value is computed one by one,
# some tens of bytes each. Older events are folded into panes, and `histories_folded` counts the values.
HISTORY_EVENTS_MAX = 100_000

# Lists (cep/docs/reference/language/changing-lists.md). A list has at most so many entries, of so many bytes: half a
# gigabyte that all processes of a machine share. A file is read whole.
LIST_ENTRIES_MAX = 10_000_000
LIST_ENTRY_BYTES_MAX = 256
LIST_FILE_BYTES_MAX = 1_073_741_824
# Entries that a version differs from the base that it shares with others; past this it gets a base of its own, which
# costs a second for millions of entries.
LIST_CHANGES_MAX = 100_000
# Records that one version of a list may be divided into: 10 million entries of a hundred bytes are a thousand.
LIST_PARTS_MAX = 4_096
# Lists of one job, and of one list the versions that have not started or are not complete; the next one is refused.
LISTS_MAX = 1_000
LIST_VERSIONS_MAX = 64
# Entries of a list that a rule's parameter gives in place: they are part of the rule, which is a few kB.
LIST_PARAM_ENTRIES_MAX = 1_000
# Values of a sub-key that one history remembers for one key. A sub-keyed `last` or `first_seen` stores an event for
# each value. Beyond the limit a `last` forgets the values that came longest ago, a `first_seen` does not remember new
# ones, and `history_values_dropped` counts the events concerned. Aggregates by a sub-key forget the values that came
# longest ago if a window has more events than HISTORY_EVENTS_MAX, which this limit must not be below. `histories_cut`
# counts the values of histories that may lack forgotten events.
HISTORY_VALUES_MAX = 100_000
# Decoded segments of histories that a Spark worker process caches between micro-batches; beyond the limit the least
# recently used ones are read again. The same for pages of runs, as bytes.
SEGMENT_CACHE_BYTES = 67_108_864
PAGE_CACHE_BYTES = 67_108_864

# One attempt to write alerts into PostgreSQL: until it answers a connection, and until another session unlocks its
# table. Beyond the limit the job reports the sink as unavailable and tries again.
POSTGRES_WAIT_MS_MAX = 3_000

# A file with one secret of a settings file, such as a password: a wrong path gives a larger one.
SECRET_FILE_BYTES_MAX = 65_536
# Simultaneous connections to a job's port; a refused one costs no thread or memory. Requests other than probes leave
# some connections free, so that a probe always gets one.
HTTP_CONNECTIONS_MAX = 32
HTTP_PROBE_CONNECTIONS = 8
# Seconds for the headers of a request and for the answer. A new connection takes the place of one that has sent no
# headers for longer than the pause.
HTTP_HEADERS_S_MAX = 2
HTTP_HEADERS_PAUSE_MS = 100
HTTP_REQUEST_S_MAX = 10
# Trust: permissions for changes, and the job's memory of signed changes.
SIGNERS_MAX = 1_000  # keys in a signers file
SIGNERS_FILE_BYTES_MAX = 262_144
KEY_FILE_BYTES_MAX = 65_536  # a private key, or the signature of a signers file: some hundred bytes
# Schema ids unknown to a registry that are requested in one micro-batch: a sender can invent them at no cost. The ids
# of most records come first; records with further ids are set aside without a request.
UNKNOWN_SCHEMAS_MAX = 20
# Ids that a registry answers with a failure, in one micro-batch: each may take two time-outs. Records of further ids
# are set aside unasked.
FAILING_SCHEMAS_MAX = 3
# Schemas that a registry's schema refers to, directly or indirectly.
SCHEMA_REFERENCES_MAX = 100
# A record of an Avro schema that has itself inside: each byte may be a level of nesting, which takes up to two
# kilobytes of a stack of some megabytes. A longer one is set aside.
NESTED_RECORD_BYTES_MAX = 1_000
# A schema of Avro or descriptors of Protobuf: the messages of a large company together take some MB.
SCHEMA_FILE_BYTES_MAX = 16_777_216
# Lines of versions with signed changes: for each rule, its pauses and shadows, and each snoozed key. The job must
# remember the last of each, or an old record would count again. Beyond the limit, new lines are refused.
SIGNED_LINES_MAX = 50_000
# Rules and lists whose last unverified record the status names: a sender to the topic can invent names at no cost.
UNVERIFIED_MAX = 100

# Events, as bytes of their files, that a replay matches in this process unless an engine is named: seconds. Beyond the
# limit Spark matches, which takes half a minute to start.
IN_PROCESS_BYTES_MAX = 33_554_432
