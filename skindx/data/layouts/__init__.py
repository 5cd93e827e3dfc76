"""Layouts of public datasets and of scrapers' folders: how each is recognised, and its recipe."""
