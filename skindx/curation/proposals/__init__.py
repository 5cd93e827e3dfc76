"""Boxes that a model proposes and a person confirms."""
