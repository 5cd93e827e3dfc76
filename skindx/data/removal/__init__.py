"""Removal of images from everywhere: take-down, block list, decisions of reviewers."""
