"""Heads on the features of a frozen trunk: many at once by steps, or solved at once."""
