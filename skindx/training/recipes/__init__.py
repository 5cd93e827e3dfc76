"""How a member is optimised: losses, mixing, averages, schedules, starting weights."""
