"""The trainer beside bare loops."""
