"""Out-of-distribution (OOD) detection: whether a photo is of the kind that networks know."""
