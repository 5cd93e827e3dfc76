"""Monitoring of a served bundle: numbers of the photos, tests for drift, the file, its words."""
