"""timm classifiers over uint8 images."""
