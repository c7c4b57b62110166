"""Floor 6: the loops that feed the engine. Replay and live on Spark, and the embedded one."""
