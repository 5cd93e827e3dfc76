"""Convolutions that skip zeros beside dense ones."""
