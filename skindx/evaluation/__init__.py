"""Evaluation of a bundle on a dataset: predictions, scores, comparisons, report."""
