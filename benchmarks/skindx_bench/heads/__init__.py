"""Heads on one trunk beside trainings that each compute it."""
