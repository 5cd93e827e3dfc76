"""Pages of the reference that are made from the code whenever the guide is built."""
