"""Learns the package's `codebook.npz` and `acceptance.json` from painted images.

`python -m skindx.data.copies.learn codebook`, then `... acceptance`. Neither reads a real image.
"""
