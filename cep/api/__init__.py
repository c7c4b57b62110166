"""The public names of the library: rules, any frame in, alerts out."""
