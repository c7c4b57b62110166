"""Sinks of alerts. Every sink writes the same JSON form of an alert."""
