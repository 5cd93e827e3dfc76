"""Ranks and their devices: who talks to whom, and what changes about a network for it."""
