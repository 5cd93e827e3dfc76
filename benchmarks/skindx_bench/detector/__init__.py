"""The detector beside ultralytics."""
