"""Where a training's figures go: the terminal, a CSV, and the trackers that its settings name."""
