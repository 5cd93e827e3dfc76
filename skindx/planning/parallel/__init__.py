"""Arithmetic of networks whose layers are shared out over ranks, and not their images alone."""
