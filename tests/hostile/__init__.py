"""Hostile inputs by seeds, for every door of the project: python -m tests.hostile."""
