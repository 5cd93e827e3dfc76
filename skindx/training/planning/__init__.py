"""A plan for a training: measure its networks and its ranks, plan, and keep what was predicted."""
