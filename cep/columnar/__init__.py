"""Records → EventBatch, and EventBatch ↔ bytes. Knows the event schema, no rule and no pattern."""
