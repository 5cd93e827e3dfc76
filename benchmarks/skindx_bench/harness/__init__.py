"""Meters of benchmarks other than time."""
