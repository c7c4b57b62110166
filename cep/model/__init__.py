"""Strict models of the input of people and other programs: rule files and control records."""
