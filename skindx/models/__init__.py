"""Classifier, detector, ensemble, calibration, and the bundle that carries them."""
