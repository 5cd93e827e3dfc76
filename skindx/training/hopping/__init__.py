"""Members that hop between pinned partitions, and whole members a rank: work taken by leases."""
