"""Scans that users ask for: their queue, process and answer."""
