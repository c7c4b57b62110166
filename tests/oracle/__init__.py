"""The oracle: a small, slow matcher written from the definitions, against which the engine is compared."""
