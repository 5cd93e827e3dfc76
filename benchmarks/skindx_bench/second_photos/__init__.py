"""Recall of second photos of one lesion, and false links among lesions that look alike."""
