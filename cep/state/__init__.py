"""Floor 5: KeyedState ↔ the bytes that a store keeps; the stores, their checkpoints and savepoints."""
