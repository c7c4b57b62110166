"""Lists of millions of entries: texts → keys, sets of keys on disk, and which of an event's values are in them."""
