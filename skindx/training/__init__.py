"""Datasets become trained members; `engine.py` is the only file that knows DeepSpeed."""
