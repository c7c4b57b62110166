"""The Spark adapter: the only folder that knows pyspark."""
