"""Machines beside each other, from the JSON files of benches."""
