"""Scenarios with the answers of another matcher: read them, write them as patterns, run them, compare."""
