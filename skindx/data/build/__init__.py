"""From a recipe to a dataset folder: the stages of `skindx build` and what it reports."""
