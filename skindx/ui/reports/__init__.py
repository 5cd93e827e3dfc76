"""PDF reports of the page, made when they are asked for."""
