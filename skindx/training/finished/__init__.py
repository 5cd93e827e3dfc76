"""What a finished training leaves in the run: members, detector, snapshots, fingerprints."""
