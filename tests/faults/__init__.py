"""Faults by seeds: python -m tests.faults."""
