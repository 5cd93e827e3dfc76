"""Resampling of 8-bit RGB images to a given size."""
