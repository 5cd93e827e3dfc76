"""Hopping members against data-parallel ones and whole members a rank, on an emulated cluster."""
