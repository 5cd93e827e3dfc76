"""Predictions of `skindx plan` against measurements on an emulated cluster."""
