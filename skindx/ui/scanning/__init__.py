"""Scans of wide photos as jobs of the server: a waiting line, a process of its own, an answer."""
