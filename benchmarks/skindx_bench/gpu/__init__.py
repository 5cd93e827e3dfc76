"""Everything that needs a GPU, by one command: its tests, and the trainer beside timm's script."""
