"""Probabilities that hold what they say: temperature, conformal sets, urgent risk."""
