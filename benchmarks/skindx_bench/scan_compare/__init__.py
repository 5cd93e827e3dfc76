"""Two photos of one painted body: how many lesions are found again."""
