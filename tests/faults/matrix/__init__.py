"""Cells of fault × moment × runner in one process: a real verb, a virtual clock, real codes of brokers and sinks."""
