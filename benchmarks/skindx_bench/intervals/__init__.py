"""Simulated coverage of the confidence intervals."""
