"""Assignment of images to splits: groups, splits, folds, and stored assignments."""
