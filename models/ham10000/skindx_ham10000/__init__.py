"""The bundle ham10000: data, which skindx reads."""
