"""The text of a pattern file → the same text in the canonical layout."""
