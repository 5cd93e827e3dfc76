"""A local book of cases: photos and answers that a person agreed to keep."""
