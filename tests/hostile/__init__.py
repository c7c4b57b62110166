"""Differential fuzzing against the real Flink CEP: python -m tests.fuzz."""
