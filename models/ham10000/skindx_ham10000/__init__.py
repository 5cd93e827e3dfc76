"""The bundle ham10000: data, which skindx reads. Nothing here is code, and nothing is imported."""
