"""The stages of `skindx build` from a recipe to a dataset folder, and what it reports."""
