"""Signers files, private keys, keys of card numbers, heartbeats and signed changes, damaged or forged."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

from cep.base.errors import CepError, UsageError
from cep.base.secrets import SECRETS_FILE, secret_keys
from cep.base.signing import new_key, read_key
from cep.model import rule
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_change
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import save
from cep.rulebook.signers import read_trust, sign_signers, signature_path
from cep.rulebook.trust import Signable
from cep.step.job import Job
from cep.step.rules import apply_records
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, Kind
from tests.hostile.mutate import TOML_TRICKS, broken_bytes, broken_value
from tests.rulebook.people import ROOT, TRUST, by_two, write_signers
from tests.runners.spark.live_cases import rules


def signers(folder: Path) -> Feed:
    """A changed signers file: refused, unless it is valid and the root key signs it again."""
    path = write_signers(folder / "signers.toml")
    good, signature = path.read_bytes(), signature_path(path).read_bytes()

    def feed(random: Random) -> str:
        data = good + random.choice(TOML_TRICKS).encode() if random.random() < 0.2 else broken_bytes(good, random)
        path.write_bytes(data)
        signature_path(path).write_bytes(signature if random.random() < 0.7 else broken_bytes(signature, random))
        try:
            read_trust(path, ROOT.public)
            if data != good:
                raise DiffersError("a signers file was changed, and its signature counts")
        except CepError:
            pass
        try:
            sign_signers(path, ROOT)
            read_trust(path, ROOT.public)
        except CepError:
            return REFUSED
        return ACCEPTED

    return feed


def private_keys(folder: Path) -> Feed:
    """A file with a private key, and one with keys of card numbers."""
    path, secrets = folder / "key.pem", folder / "secrets"
    new_key(path)
    good = path.read_bytes()
    lines = b"k1 " + b"s" * 40 + b"\nk2 " + b"t" * 40 + b" 2026-12-01T00:00:00Z\n"

    def feed(random: Random) -> str:
        outcome = ACCEPTED
        path.write_bytes(broken_bytes(good, random))
        path.chmod(random.choice((0o600, 0o600, 0o600, 0o644)))
        try:
            read_key(path, random.choice((None, "passphrase")))
        except CepError:
            outcome = REFUSED
        # A new name: files of keys are read once.
        named = secrets.with_name(f"secrets-{random.getrandbits(60)}")
        named.write_bytes(broken_bytes(lines, random))
        os.environ[SECRETS_FILE] = str(named)
        try:
            secret_keys()
        except UsageError as error:
            if "s" * 20 in str(error):
                raise DiffersError("an error shows a secret") from None
            outcome = REFUSED
        finally:
            del os.environ[SECRETS_FILE]
            named.unlink()
        return outcome

    return feed


def signed_changes(folder: Path) -> Feed:
    """Signed changes and heartbeats for a job that takes only signed ones: a changed one must not count."""
    deployment = deploy(rules().values())
    job = Job(deployment.schema, deployment.key_domains)
    path = folder / "change.json"
    records = _signed(rules().values())
    trees = [json.loads(record.to_json()) for record in records]
    heartbeat = json.loads(rule.HeartbeatRecord(event_time="2026-03-01T00:00:00Z").to_json())
    before = Rulebook(job.schema, job.domains)
    before.trust = TRUST
    # The rules that other records pause, snooze or bring back are in force. The others come with the records
    # themselves.
    apply_records(before, tuple(record.to_json() for record in records[:_IN_FORCE]), None)
    assert len(before.rules) == 1
    expected = {_seen(before)} | {_seen(_after(before, record.to_json())) for record in records}
    assert len(expected) == 1 + len(records) - _IN_FORCE, "a genuine record counts"

    def feed(random: Random) -> str:
        place = random.randrange(len(trees))
        if random.random() < 0.2:
            data = json.dumps(broken_value(heartbeat, random)).encode()
        elif random.random() < 0.5:
            data = broken_bytes(records[place].to_json(), random)
        else:
            data = json.dumps(broken_value(trees[place], random)).encode()
        path.write_bytes(data)
        with suppress(CepError):
            read_change(path)
        after = _seen(_after(before, data))
        if after not in expected:
            raise DiffersError(f"a changed record of {records[place].id} counts")
        return REFUSED if after == _seen(before) else ACCEPTED

    return feed


_IN_FORCE = 2  # two versions of a rule, so that one can be brought back


def _signed(upserts: Iterable[rule.UpsertRecord]) -> list[Signable]:
    """Return two signed versions of a rule, and then every kind of change as the next record after them."""
    first, *others = upserts
    signed = by_two(first)
    second = first.model_copy(update={"version": first.version + 1, "message": "another"})
    later = by_two(second, signed)
    back = rule.RollbackRecord(id=first.id, version=first.version + 2, to_version=first.version, rule=first)
    return [
        signed, later, *map(by_two, others), by_two(back, later),
        by_two(rule.RetireRecord(id=first.id, version=first.version + 2), later),
        by_two(rule.PauseRecord(id=first.id, version=1)),
        by_two(rule.SnoozeRecord(id=first.id, version=1, until="2026-06-01T00:00:00Z", by="Ada")),
        by_two(rule.SnoozeRecord(id=first.id, version=1, until="2026-06-01T00:00:00Z", key="C-1", by="Ada")),
        by_two(rule.ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a", "b"])),
    ]  # fmt: skip


def _after(before: Rulebook, data: bytes) -> Rulebook:
    book = before.copy()
    apply_records(book, (data,), None)
    return book


def _seen(book: Rulebook) -> str:
    """Return the state in force: the rulebook without its refusals and its audit trail, which has refusals too."""
    saved = save(book)
    index = json.loads(saved.index)
    return json.dumps([sorted(saved.records), [index[name] for name in ("rules", "ledger", "snoozes", "lists")]])


KINDS = (
    Kind("signers files", 25, signers), Kind("key files", 20, private_keys),
    Kind("signed changes", 35, signed_changes),
)  # fmt: skip
