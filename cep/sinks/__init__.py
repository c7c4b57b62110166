"""Floor 5: where alerts go. Every sink writes the same JSON form of an alert."""
