"""How images reach the ranks: batches, caches, shuffled shards, the copy to a GPU."""
