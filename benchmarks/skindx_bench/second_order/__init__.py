"""K-FAC beside first-order optimizers: time and epochs to the same accuracy, and its cost."""
