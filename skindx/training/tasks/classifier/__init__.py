"""Training one classifier on all ranks."""
