"""Where alerts go. Every sink writes the same JSON form of an alert."""
