"""Records of a micro-batch that are brought to a place once, all of them or none."""
