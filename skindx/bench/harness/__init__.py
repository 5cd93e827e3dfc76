"""Shared parts of all benchmarks: clocks, results, trained runs, an emulated network."""
