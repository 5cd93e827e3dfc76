"""A photo of any size on disk as plain pixels: decoded once, read in pieces from then on."""
