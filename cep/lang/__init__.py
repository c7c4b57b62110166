"""Pattern text → tokens → syntax tree → checked, typed IR. Knows nothing of arrays, state or Spark."""
