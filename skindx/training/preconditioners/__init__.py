"""Preconditioners: they change the averaged gradient before the optimizer takes it."""
