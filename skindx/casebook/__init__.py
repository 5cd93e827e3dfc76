"""Cases that a person agreed to keep: compared over time, confirmed, and given back as data."""
