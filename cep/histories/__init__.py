"""The past of a key → one column of values at each new event."""
