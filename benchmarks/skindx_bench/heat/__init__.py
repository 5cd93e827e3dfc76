"""Heat maps of class-token transformers: methods compared on planted patches."""
