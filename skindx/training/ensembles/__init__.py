"""Members become one ensemble: folds, soups, ways to combine, a student, the bundle."""
