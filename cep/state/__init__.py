"""KeyedState ↔ the bytes that a store keeps; the stores, their checkpoints and savepoints."""
