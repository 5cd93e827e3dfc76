"""Who may use the server: a file of users, sessions, and patience with wrong passwords."""
