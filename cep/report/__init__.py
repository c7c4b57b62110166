"""Checked patterns and results → text and pictures for people."""
