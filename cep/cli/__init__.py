"""One file per verb. Turns arguments into calls and results into text and exit codes."""
