"""Find the plan of `exchange.kind=fused`: time backward, fit the network, plan, time the plans."""
