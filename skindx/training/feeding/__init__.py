"""How images reach the ranks: batches, what is kept where, exchange, the copy to a GPU."""
