"""Names of a run's folders that hold checkpoints."""

CHECKPOINTS = "checkpoints"
"""In the run: a folder for each member that is in training."""
