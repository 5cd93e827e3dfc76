"""What is trained: a classifier or a detector."""
