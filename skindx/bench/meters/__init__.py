"""What a benchmark measures beside time."""
