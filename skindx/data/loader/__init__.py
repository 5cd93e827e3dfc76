"""Images of a manifest as uint8 batches: threads, caches, crops; no torch."""
