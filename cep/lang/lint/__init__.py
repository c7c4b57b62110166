"""A checked file set → text that is allowed but probably not meant."""
