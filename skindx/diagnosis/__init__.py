"""A bundle becomes a diagnosis."""
