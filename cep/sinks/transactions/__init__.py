"""What of a micro-batch is to be somewhere once, whole or not at all."""
