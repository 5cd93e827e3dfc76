"""Outputs of a scan: tables, crops, a page, a PDF, and data for later comparisons."""
