"""Numba functions over bare arrays. They know integers, no rule, no schema, no string.

Every kernel is compiled once per machine and kept on disk (jit.py); none is ever compiled for a rule.
"""
