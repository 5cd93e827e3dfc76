"""Two scans of one person: photos are registered, lesions matched, changes listed."""
