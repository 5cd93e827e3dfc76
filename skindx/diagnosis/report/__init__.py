"""The printed report: a record to file, a page for the patient, the technical basis."""

from typing import Literal

PdfPart = Literal["full", "short", "patient"]
"""What a report holds: record, technical basis and the page for the patient; the same without the
technical basis; or that page alone."""
