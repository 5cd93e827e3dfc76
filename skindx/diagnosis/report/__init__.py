"""The printed report: a record to file, a page for the patient, the technical basis."""
