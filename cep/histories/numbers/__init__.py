"""The arithmetic of histories: tallies, bands, panes and sketches as arrays, without a call around them."""
