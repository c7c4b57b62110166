"""Syntax trees of all files → checked, typed IR, with every mistake collected."""
