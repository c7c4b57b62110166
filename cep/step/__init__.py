"""One micro-batch of any job, whichever runner has it."""
