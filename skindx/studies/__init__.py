"""What needs both a dataset and a bundle: evaluation and its report."""
