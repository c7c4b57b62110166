"""Kernels of the matcher: runs of a rule over the events of many keys."""
