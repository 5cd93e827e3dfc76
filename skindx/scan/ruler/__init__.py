"""A ruler on the photo: its ticks are found, their unit is derived, a person confirms both."""
