"""What a bundle is worth on a dataset: predictions, scores, comparisons, report."""
