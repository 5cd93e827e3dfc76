"""Which images stand on which side: groups, splits, folds, and places that are kept."""
