"""Tasks of the training loop: a classifier or a detector."""
