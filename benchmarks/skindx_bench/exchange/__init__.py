"""Gradient exchanges on an emulated cluster."""
