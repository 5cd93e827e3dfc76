"""Reporting of a training's figures: terminal, CSV, and configured trackers."""
