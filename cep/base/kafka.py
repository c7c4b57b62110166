"""A job's Kafka settings → the options of librdkafka's clients: the one place for our defaults.

    options = defaults of the kind of client  <  what the job's settings say  <  what a client must have
    check_access: a wrong password or certificate → an error that says so, before anything waits for brokers

Tested by: tests/base/test_kafka.py, tests/cli/test_outage.py, tests/sources/test_kafka.py, tests/sinks/test_kafka.py,
tests/rulebook/test_publish.py
"""

import socket
import ssl
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from cep.base.errors import UsageError

_NEXT_LOOK_S = 0.02  # between two looks for a topic
_QUIET = {"log_level": "2"}  # broker errors reach the caller in our exceptions
READER_DEFAULTS = {
    **_QUIET,
    "group.id": "cep",  # the client insists on a name; no group is joined
    "check.crcs": "true",  # a changed byte on a broker's disk must be detected; the client does not check by default
}
READER_FIXED = {
    "auto.offset.reset": "error",  # a lost offset is an error, never a silent jump
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",  # how the end of a range is seen when its last offsets are holes
}
WRITER_DEFAULTS = {
    **_QUIET,
    "linger.ms": "0",  # all of a micro-batch is there at once
    "retry.backoff.ms": "10",  # the coordinator asks to try again while it ends the transaction before
    "compression.type": "lz4",
}
WRITER_FIXED = {
    "enable.idempotence": "true",
    "acks": "all",
    # A broker takes any first number of a producer. Where a topic is new, it can refuse a first request and take a
    # second one that is under way. The first one, sent again, then counts as taken before, and its records are lost.
    "max.in.flight.requests.per.connection": "1",
}

GONE_CODES = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
DAMAGED_CODES = (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION)  # noqa: SLF001
END_CODE = KafkaError._PARTITION_EOF  # noqa: SLF001
# Codes after which the same request may succeed later: those that Kafka's protocol calls retriable, and those of the
# client that tell of the network, of time, or of a broker that starts again. Each other code is a refusal.
TEMPORARY_CODES = frozenset((
    KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._QUEUE_FULL, KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._WAIT_CACHE, KafkaError._RETRY, KafkaError._IN_PROGRESS, KafkaError._PREV_IN_PROGRESS,  # noqa: SLF001
    KafkaError._DESTROY_BROKER, KafkaError._UNKNOWN_BROKER, KafkaError._NODE_UPDATE, KafkaError._INTR,  # noqa: SLF001
    KafkaError._ISR_INSUFF,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.NOT_CONTROLLER,
    KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.FETCH_SESSION_ID_NOT_FOUND,
    KafkaError.INVALID_FETCH_SESSION_EPOCH, KafkaError.LISTENER_NOT_FOUND, KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_BROKER_EPOCH, KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID, KafkaError.REBOOTSTRAP_REQUIRED, KafkaError.TRANSACTION_COORDINATOR_FENCED,
))  # fmt: skip
_SINK_CODES = {
    "access": (
        KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "missing": (
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    ),
    "too_large": (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE),
}  # fmt: skip
_FULL_QUEUE_WAIT_S = 0.1
_ACCESS_CODES = (KafkaError._SSL, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)  # noqa: SLF001
_TLS, _TLS_ALERT = "SSL routines", "alert"  # the start of OpenSSL's messages, and of an alert from the other side
_ACCESS_S, _ACCESS_POLL_S = 5.0, 0.25


def reader_options(
    servers: str, options: Mapping[str, str], defaults: Mapping[str, str] = {}, fixed: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Return the options of a consumer; `defaults` and `fixed` are added to the options of all consumers."""
    return {**READER_DEFAULTS, **defaults, **options, **READER_FIXED, **fixed, "bootstrap.servers": servers}


def writer_options(
    servers: str, options: Mapping[str, str], wait_ms_max: int, defaults: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Return the options of a producer that waits for an acknowledgement for `wait_ms_max` (ms) by default."""
    ours = {**WRITER_DEFAULTS, "message.timeout.ms": str(wait_ms_max), **defaults}
    return {**ours, **options, **WRITER_FIXED, "bootstrap.servers": servers}


def admin_options(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a client that asks for topics and makes them."""
    return {**_QUIET, **options, "bootstrap.servers": servers}


def check_access(servers: str, access: Mapping[str, str], wait_s: float = _ACCESS_S) -> None:
    """Connect to brokers with protected access once, so that a refusal is reported at the start and with its reason.

    Brokers that give no answer are reported by the later readers and writers. Raises: UsageError, without any secret.
    """
    if access.get("security.protocol", "plaintext").lower() == "plaintext":
        return
    refusals: list[str] = []

    def hear(error: KafkaError) -> None:
        if error.code() in _ACCESS_CODES or _TLS in error.str():  # a refused login, or a failed TLS handshake
            refusals.append(error.str())

    options: dict[str, Any] = {**admin_options(servers, access), "error_cb": hear}
    try:
        client = AdminClient(options)
    except KafkaException as error:
        raise UsageError(
            f"the Kafka client does not accept its settings: {reason_of(error)}; mend [kafka.client]"
        ) from error
    deadline_s = monotonic() + wait_s
    while not refusals and monotonic() < deadline_s:
        try:
            client.list_topics(timeout=_ACCESS_POLL_S)
        except KafkaException:
            client.poll(0.0)  # lets the client call `hear`
        else:
            return
    if refusals:
        heard = refusals[-1]
        if _TLS in heard and _TLS_ALERT in heard:
            heard = f"the broker takes no client without a certificate that it trusts ({heard})"
        reason = _certificate_trouble(servers, access) or heard
        raise UsageError(
            f"Kafka at {servers} and this job do not come to terms: {reason}; see [kafka.client] of its settings, and "
            "`cep docs guides/secure`"
        )


def _certificate_trouble(servers: str, access: Mapping[str, str]) -> str | None:
    """Return the fault of the first broker's certificate, which librdkafka does not report; None if it has none."""
    host, _, port = servers.split(",", maxsplit=1)[0].strip().rpartition(":")
    try:
        context = ssl.create_default_context(cafile=access.get("ssl.ca.location"))
        with socket.create_connection((host, int(port)), _ACCESS_POLL_S * 4) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        trusted = access.get("ssl.ca.location", "this machine's authorities")
        return f"the broker's certificate does not count: {error.verify_message} (trusted: {trusted})"
    except (OSError, ValueError):  # the broker cannot be reached any more
        return None
    return None


def produce(
    producer: Producer, topic: str, value: bytes | None, key: bytes | None, deadline_s: float, **more: Any
) -> None:
    """Add a record to the producer's queue; `more` are arguments of Producer.produce.

    Raises: KafkaException if the queue stays full until `deadline_s` (of time.monotonic).
    """
    while True:
        try:
            producer.produce(topic, value, key, **more)
        except BufferError as error:
            if monotonic() >= deadline_s:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from error  # noqa: SLF001 its public name
            producer.poll(_FULL_QUEUE_WAIT_S)  # serves deliveries, which makes room
        else:
            return


def seconds_left(deadline_s: float) -> float:
    """Return the seconds until a deadline; the client takes 0 for an answer that is there already."""
    return max(0.0, deadline_s - monotonic())


def reason_of(error: KafkaException) -> str:
    """Return the failure that the client or a broker reports, in one sentence."""
    cause = error.args[0] if error.args else error
    return str(cause.str()) if isinstance(cause, KafkaError) else str(cause)


def is_away(error: KafkaException) -> bool:
    """Return True if brokers did not answer in time, or if the request may succeed later."""
    cause = error.args[0] if error.args else None
    return isinstance(cause, KafkaError) and is_temporary(cause)


def is_temporary(error: KafkaError) -> bool:
    """Return True if the same request may succeed later."""
    return bool(error.retriable()) or (error.code() in TEMPORARY_CODES and not error.fatal())


def sink_reason(error: KafkaException) -> str:
    """Return the word for which brokers do not take records: one of SINK_REASONS (sinks/base.py)."""
    code = error.args[0].code() if error.args and isinstance(error.args[0], KafkaError) else None
    if is_away(error):
        return "no_answer"
    return next((reason for reason, codes in _SINK_CODES.items() if code in codes), "refused")


def is_shown(admin: AdminClient, topic: str, wait_s: float) -> bool:
    """Wait until the brokers list a new topic, which takes some moments; False if they do not within `wait_s`."""
    end_s = monotonic() + wait_s
    while True:
        try:
            topic_metadata = admin.list_topics(topic, timeout=max(0.1, end_s - monotonic())).topics.get(topic)
            if topic_metadata is not None and topic_metadata.error is None and topic_metadata.partitions:
                return True
        except KafkaException:
            pass
        if monotonic() >= end_s:
            return False
        sleep(_NEXT_LOOK_S)
