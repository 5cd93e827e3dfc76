"""Parallel forms whose gain nobody has measured: `tensor` and `tensor3d`, as entry points."""
