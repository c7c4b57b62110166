r"""Text of rules and events → text without characters that hide or move anything.

A value can hold escape sequences that move the cursor or recolour a line, and characters without a width that make two
different texts look equal. `visible` writes each of them as an escape, such as `\u001b` or `\u202e`, as in JSON.
Everything that a verb prints passes through it; terminal.py does so for tables and styled text.
Tested by: tests/base/test_visible.py
"""

from __future__ import annotations

import re

# Control characters but for tab and line feed, characters without a width or without ink, marks that change the
# direction of a text, the separators of lines and paragraphs, surrogates, formats of shorthand, music and hieroglyphs,
# and tags.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Return the text with each hidden character written as an escape. Tabs and line feeds stay."""
    return HIDDEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
