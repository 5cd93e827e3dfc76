"""The clinic's formats of an answer: DICOM structured reports and FHIR."""
