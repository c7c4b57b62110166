"""One micro-batch of any job, in any runner."""
