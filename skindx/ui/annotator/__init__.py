"""The page on which a reviewer draws lesion boxes into a dataset's images."""
