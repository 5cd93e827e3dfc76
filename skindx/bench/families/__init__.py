"""Which model families of timm do all that a member must do."""
