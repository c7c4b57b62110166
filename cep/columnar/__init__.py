"""Floor 2: records → EventBatch, and EventBatch ↔ bytes. Knows the event schema, no rule and no pattern."""
