"""A scan as leased tasks: workers may die, join from other machines, and be started again."""
