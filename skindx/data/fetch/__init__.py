"""The crawl: one process of its own, polite by default, that answers through the ledger alone."""
