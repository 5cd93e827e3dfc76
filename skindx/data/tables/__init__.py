"""Tables of every kind that people have: one strict reader, and the pieces that shape its lines."""
