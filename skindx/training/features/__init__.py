"""Features of frozen trunks: computed once for each trunk and view, kept memory-mapped."""
