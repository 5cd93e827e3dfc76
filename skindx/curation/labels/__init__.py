"""Labels that out-of-fold predictions contradict."""
