"""Tests of patterns, and why a run did or did not become a match."""
