"""Check which model families of timm can serve as members."""
