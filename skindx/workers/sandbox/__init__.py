"""Sandboxed calls: processes with limited memory and time for untrusted files."""
