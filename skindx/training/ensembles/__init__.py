"""Members become one ensemble: folds, soups, combiners, a student, the bundle."""
