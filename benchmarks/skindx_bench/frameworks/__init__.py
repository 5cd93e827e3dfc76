"""The same training in several frameworks, each in an environment of its own."""
