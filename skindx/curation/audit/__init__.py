"""Review of a dataset by a person before it is published."""
