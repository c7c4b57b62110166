"""Keyword arguments of a backtest in Python → how events are read, and the terms.

Tested by: tests/api/test_features.py
"""

from __future__ import annotations

from collections.abc import Mapping

from cep.analysis.backtest import DAY_MS
from cep.analysis.label_words import label_words
from cep.analysis.measure import Terms, episodes_of
from cep.api.events import ReplayForms, parted
from cep.api.naming import Naming
from cep.base.errors import UsageError
from cep.base.processors import processors_count
from cep.base.utc import utc_ms
from cep.model.setting_types import length_ms


class Measuring(ReplayForms, total=False):
    """The terms of a backtest, and the form of its events: the flags of `cep backtest`, with underscores.

    `amount` names the field of money. Labels count as reported at the time `as_of`. An event counts from the age
    `maturity` on, like `30 d`. Labelled events of a key are one fraud if they are at most so far apart as `episodes`
    says, like `1d` or `card_id:12h`. `label_words` says of words of the labels whether they mean `fraud` or `honest`,
    and `*` of all others. With `allow_label` rules may read the column of the labels. `columns`, `tz`, `cores`,
    `since`, `until`, `dedup` and `to_the_end` are as in `match`.
    """

    amount: str | None
    as_of: str | None
    maturity: str | None
    label_words: Mapping[str, str]
    allow_label: bool
    episodes: str | None
    columns: Mapping[str, str] | None
    tz: str | None
    cores: int | None


_OWN = ("amount", "as_of", "maturity", "label_words", "allow_label", "episodes", "columns", "tz", "cores")


def measuring(arguments: Measuring) -> tuple[Naming, Terms]:
    """Return the form of events, and the terms. Raises: UsageError for an invalid time or age."""
    as_of, maturity = arguments.get("as_of"), arguments.get("maturity")
    forms: ReplayForms = {name: value for name, value in arguments.items() if name not in _OWN}  # type: ignore[assignment]
    written, period = parted(forms)
    try:
        as_of_ms = None if as_of is None else utc_ms(as_of)
    except ValueError as error:
        raise UsageError(f"as_of: {error}") from error
    maturity_ms = None if maturity is None else length_ms("maturity", maturity)
    words = label_words(
        [f"{word}={verdict}" for word, verdict in arguments.get("label_words", {}).items()], "label_words"
    )
    written_episodes = arguments.get("episodes")
    key, gap_ms = (None, DAY_MS) if written_episodes is None else episodes_of("episodes", written_episodes)
    terms = Terms(
        arguments.get("amount"), as_of_ms, maturity_ms, arguments.get("cores") or processors_count(), period, words,
        allow_label=arguments.get("allow_label", False), episode_gap_ms=gap_ms, episode_key=key,
    )  # fmt: skip
    return Naming(arguments.get("columns"), arguments.get("tz"), written), terms
