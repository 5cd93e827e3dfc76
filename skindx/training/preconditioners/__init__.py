"""What changes the gradient that all ranks agreed on before the optimizer takes it."""
