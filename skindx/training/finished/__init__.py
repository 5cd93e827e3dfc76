"""Results of a finished training: members, detector, snapshots, fingerprints."""
