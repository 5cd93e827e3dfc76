"""What the package ships is learned here, from painted images: `codebook.npz`, `acceptance.json`.

`python -m skindx.data.copies.learn codebook`, then `... acceptance`. Neither reads a real image.
"""
