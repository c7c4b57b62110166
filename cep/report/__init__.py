"""Floor 6: checked patterns and results → text and pictures for people."""
