"""Datasets that a person reviews: audit, labels, de-duplication sweep, box proposals."""
