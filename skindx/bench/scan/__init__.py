"""Scans of composed photographs: a stress test of the pipeline, no evidence for patients."""
