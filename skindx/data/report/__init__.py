"""The report of a dataset: one HTML page that every build writes beside its tables."""
