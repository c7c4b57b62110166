"""Settings and rules in force → the job that matches a stream with them, for `cep live`, `cep run` and `match_stream`.

Tested by: tests/cli/test_live.py, tests/runners/spark/test_match_stream.py
"""

from __future__ import annotations

from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MIN
from cep.base.secrets import secret_keys
from cep.model.settings import JobSettings
from cep.rulebook.deploy import Deployment
from cep.rulebook.levels import levels_needed
from cep.runners.handover.warm_start import WarmStart
from cep.step.job import Job, new_digest_key


def live_job(settings: JobSettings, deployment: Deployment, warm: WarmStart | None = None) -> Job:
    """Describe the job of these rules, also routed by the keys that later rules may use. Raises: UsageError."""
    columns = deployment.schema.columns()
    if deployment.schema.protected:
        secret_keys()  # without them no event could be decoded, so the job is not to start
    extra = [tuple(field.strip() for field in text.split(",")) for text in settings.keys]
    for domain in extra:
        for field in domain:
            if field not in columns:
                raise UsageError(
                    f"--key {','.join(domain)}: the events have no field `{field}`, only {', '.join(columns)}"
                )
    domains = tuple(sorted({*deployment.key_domains, *extra}))
    begun = 1 if warm is None else warm.about.job.levels_count
    return Job(
        deployment.schema,
        domains,
        settings.key_groups,
        settings.pages,
        settings.lateness,
        settings.order,
        settings.idle,
        settings.dedup,
        levels_count=max(settings.levels, begun, levels_needed(deployment.rulebook.deployed())),
        begins_ms=TIME_MS_MIN if warm is None else warm.about.until_ms,
        ahead_ms=settings.ahead_max,
        trust=deployment.rulebook.trust,
        digest_key=new_digest_key(),
    )
