"""A diagnosis as a document: PDF and terminal."""
