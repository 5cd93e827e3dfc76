"""Convolutions that skip the zeros which ReLU made (Shi and Chu 2017, arXiv 1704.07724)."""
