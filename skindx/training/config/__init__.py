"""The settings of a training run, below everything that they configure."""
