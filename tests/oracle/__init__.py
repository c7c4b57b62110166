"""The oracle: a small, slow matcher written from the definitions, to compare the engine with."""
