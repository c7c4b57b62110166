"""Strict models of what people and other programs write: rule files and control records."""
