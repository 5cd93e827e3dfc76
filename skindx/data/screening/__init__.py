"""Bytes become images or reasons why not: decoding in limited processes, checks, reports."""
