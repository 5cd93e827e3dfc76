"""Many CNNs trained alike and evaluated on grouped folds."""
