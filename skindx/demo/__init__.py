"""`skindx demo`: everything once, on painted images and without a network."""
