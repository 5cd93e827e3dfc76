"""A first answer in minutes: what the features of given trunks tell of the classes."""
