"""Photographs of whole bodies: find the lesions, diagnose each, rank them, compare two scans."""
