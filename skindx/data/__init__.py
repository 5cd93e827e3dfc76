"""Scraped images become a dataset: acquire, screen, de-duplicate, label, split."""
