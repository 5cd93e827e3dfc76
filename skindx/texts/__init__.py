"""Every sentence of an answer, one key each, in a folder a language."""
