"""Records as they come, for the embedded runner: topics, folders, standard input."""
