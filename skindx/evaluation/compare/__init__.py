"""Two predictors on the same images."""
