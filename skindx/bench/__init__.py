"""Where clocks are read: `skindx bench NAME`."""
