"""Image towers from folders and from the Hugging Face hub, in the formats of timm and open_clip."""
