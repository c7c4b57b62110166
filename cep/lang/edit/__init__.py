"""A checked file set and a place in a text → answers for an editor: completions, definitions, renames, fixes."""
