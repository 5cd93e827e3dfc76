"""What operators and networks reach on this machine's processor and accelerator."""
