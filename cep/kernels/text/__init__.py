"""Kernels over texts: offsets and bytes, JSON in and out, sets of keys."""
