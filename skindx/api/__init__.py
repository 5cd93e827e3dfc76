"""The public Python interface; `import skindx` gives its names without loading torch."""
