"""A checked file set and a place in a text → what an editor asks: completions, definitions, renames, fixes."""
