"""Exports in int8 beside every higher precision."""
