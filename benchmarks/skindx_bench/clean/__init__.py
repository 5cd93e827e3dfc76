"""Copies that hashes miss, and images that do not belong: methods compared on planted images."""
