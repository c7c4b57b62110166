"""The loops that feed the engine. Replay and live on Spark, and the embedded one."""
