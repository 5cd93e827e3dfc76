"""Embeddings of training images, for similar cases."""
