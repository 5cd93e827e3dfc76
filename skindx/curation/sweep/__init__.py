"""Dataset size and accuracy against the de-duplication threshold."""
