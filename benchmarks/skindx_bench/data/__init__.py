"""Building and loading datasets: screening, de-duplication, decoding."""
