"""The arithmetic of histories: tallies, bands, panes and sketches as arrays, independent of a call."""
