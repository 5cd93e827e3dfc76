"""The crawl."""
