"""Serving a diagnosis: runtimes, HTTP, the page."""
