"""What takes a GPU longer than one short loan of it: slices that go on from small files."""
