"""What every benchmark shares: clocks, results, trained runs, an emulated network."""
