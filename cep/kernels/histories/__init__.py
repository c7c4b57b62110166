"""Kernels of histories: windows, sums, ranks and sketches over the past events of keys."""
