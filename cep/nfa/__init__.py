"""Checked IR → immutable NFA program (arrays). Knows nothing of events, keyed state or Spark."""
