"""Whether a training still learns as well: paired trainings."""
