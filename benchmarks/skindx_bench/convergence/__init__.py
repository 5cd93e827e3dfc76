"""Paired trainings that show whether a change of the training costs accuracy."""
