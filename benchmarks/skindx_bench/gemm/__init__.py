"""Products with a transposed matrix: NT, a transposed copy, and the tree that chooses."""
