"""The bundle: everything that a diagnosis needs in one folder, hashed, without pickle."""
