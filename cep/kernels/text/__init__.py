"""Kernels over texts: offsets and bytes, JSON input and output, sets of keys."""
