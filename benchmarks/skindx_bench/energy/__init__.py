"""How well joules can be modelled where no counter can be read."""
