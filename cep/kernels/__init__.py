"""Numba functions over plain arrays. They handle integers, without rules, schemas or strings.

Every kernel is compiled once per machine and cached on disk (jit.py); no kernel is compiled for a single rule.
"""
