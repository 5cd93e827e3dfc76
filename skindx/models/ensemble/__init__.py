"""Several classifiers that give one answer."""
