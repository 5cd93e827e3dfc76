"""What `skindx plan` predicts against what happens on an emulated cluster."""
