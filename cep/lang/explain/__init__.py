"""Codes of diagnostics: titles, long forms, examples, and how a diagnostic is shown to people and tools."""
