"""skindx: images of skin become a dataset, a dataset an ensemble, an ensemble a diagnosis."""

__version__ = "0.2.0.dev0"
