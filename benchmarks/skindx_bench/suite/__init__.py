"""One page on what a machine does: several benches, one after the other."""
