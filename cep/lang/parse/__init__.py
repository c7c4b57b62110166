"""Text → tokens → the syntax tree of one file."""
