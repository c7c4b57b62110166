"""Floor 5: KeyedState ↔ the bytes that a store keeps. Knows no store but the ones in its own files."""
