"""The diagnosis page: photos in, what to do next and what it may be out; a case book if wanted."""
