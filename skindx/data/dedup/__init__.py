"""Near-duplicates: hashes, the all-pairs join, clusters, and which image stays."""
