"""In which order patterns that feed each other are matched.

Tested by: tests/lang/test_check.py
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from cep.base.limits import PRODUCE_DEPTH_MAX

N = TypeVar("N", bound=Hashable)
# The event types that a pattern reads, and the one that it produces.
Feeds = tuple[tuple[str, ...], str | None]


def levels_of(feeds: Mapping[N, Feeds]) -> dict[N, int]:
    """Return the level of each pattern: 0 if it only reads source events, else one more than that of its inputs.

    A pattern is matched after all its inputs. The maximum is PRODUCE_DEPTH_MAX, which a pattern in a circle gets.
    """
    levels = dict.fromkeys(feeds, 0)
    for _ in range(PRODUCE_DEPTH_MAX + 1):
        level_by_type: dict[str, int] = {}
        for name, (_, produced) in feeds.items():
            if produced is not None:
                level_by_type[produced] = max(level_by_type.get(produced, 0), levels[name] + 1)
        new_levels = {
            name: max((level_by_type.get(t, 0) for t in read), default=0) for name, (read, _) in feeds.items()
        }
        new_levels = {name: min(level, PRODUCE_DEPTH_MAX) for name, level in new_levels.items()}
        if new_levels == levels:
            break
        levels = new_levels
    return levels
