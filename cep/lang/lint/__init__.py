"""A checked file set → text that is allowed but probably not meant. One lint per file; each has a code and a `find`."""
