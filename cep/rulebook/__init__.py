"""Rule files and control records → the rules in force, with their versions, intervals and epoch."""
