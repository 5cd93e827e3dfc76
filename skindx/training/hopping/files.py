"""Names of the files of a run that is trained by leases."""

DATABASE = "leases.sqlite"
"""The leases, among the run's checkpoints."""

NAME = "leases.name"
"""The queue's name in a database that several runs share; beside the leases."""

HOPS = "hops.csv"
"""In the run: which partitions each member visited in which order; its weights follow from it."""
