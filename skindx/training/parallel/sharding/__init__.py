"""Layers that are split over the ranks of an axis: what each holds, and what travels between."""
