"""What must go, goes from everywhere: take-down, block list, decisions of reviewers."""
