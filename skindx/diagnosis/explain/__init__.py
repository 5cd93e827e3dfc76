"""Why an answer is as it is: heat maps over the photo, and similar images of the training data."""
