"""The embedded runner: replay and live in one process, without Java."""
