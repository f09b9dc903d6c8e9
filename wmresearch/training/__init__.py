"""Trains one run and writes what it found into its directory."""
