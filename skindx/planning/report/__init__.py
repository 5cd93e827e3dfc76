"""A plan as text, as JSON, as a page, as a timeline for Perfetto."""
