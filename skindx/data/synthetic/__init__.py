"""A small painted Skin-10 and the atlas-like site that serves it: a known truth to build on."""
