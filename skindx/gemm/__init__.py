"""Products of a matrix with a transposed one, computed as this machine is measured to do faster.

Shi, Xu and Chu 2017 (arXiv 1702.03192): C = A B^T either directly (NT), or by a transposed copy of
B and an ordinary product (NN). A small decision tree, learned from timings, chooses by the shape.
"""
