"""The ways to carry the value of a history to the next micro-batch: one per file, all with the same four verbs."""
