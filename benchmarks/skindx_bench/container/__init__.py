"""What a container costs on this machine: the same tasks outside and inside, in pairs."""
