"""The lesion detector, built without pickle and within limits."""
