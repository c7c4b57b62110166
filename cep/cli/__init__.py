"""The verbs: arguments → calls, results → text and exit codes. `verbs.py` is the table of them."""
