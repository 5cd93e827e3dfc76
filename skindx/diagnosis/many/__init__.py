"""Many photos of a folder or a table: their list, their answers in a file, and a page of them."""
