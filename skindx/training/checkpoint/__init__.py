"""Checkpoints: whole or absent, verified, rotated, readable on any number of ranks, no pickle."""
