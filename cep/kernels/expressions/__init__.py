"""Kernels of the register machine: expressions over blocks of events, or one event and one run."""
