"""K-FAC: the gradient of each layer in the eigenbasis of its Kronecker factors."""
