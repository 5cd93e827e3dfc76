"""Bytes become pictures or reasons why not: decoding in limited processes, checks, reports."""
