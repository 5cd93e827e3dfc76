"""What a person must see before a dataset is published."""
