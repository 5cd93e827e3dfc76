"""Scans of composed photos: a stress test of the pipeline, no evidence for patients."""
