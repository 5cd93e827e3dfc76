"""A parallel form whose gain nobody has measured, as an entry point."""
