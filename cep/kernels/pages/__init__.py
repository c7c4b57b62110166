"""Kernels of pages: keyed state to bytes and back, and rows moved between states."""
