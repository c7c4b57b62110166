"""Lints: a checked file set → what is allowed but probably not meant. One lint a file; each has a code and a `find`."""
