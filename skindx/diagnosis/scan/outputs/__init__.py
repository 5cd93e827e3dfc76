"""What a scan writes: tables, crops, a page, a PDF, and what a later scan is compared with."""
