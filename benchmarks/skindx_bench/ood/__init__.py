"""Out-of-distribution detectors compared."""
