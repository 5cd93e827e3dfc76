"""The networks' bodies for faster runtimes: made, checked, chosen; heads stay in torch."""
