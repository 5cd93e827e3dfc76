"""Logins: a file of users, sessions, and a limit on wrong passwords."""
