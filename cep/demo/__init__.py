"""The simulated day: payments with planted fraud, a job that finds it, and a replay that must find the same."""
