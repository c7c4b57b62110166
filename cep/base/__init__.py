"""Words that every other floor uses. Errors, limits, types, times, counters. Imports nothing of ours."""
