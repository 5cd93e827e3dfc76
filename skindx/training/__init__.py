"""Datasets become trained members; `loop.py` trains, `deepspeed/` alone knows DeepSpeed."""
