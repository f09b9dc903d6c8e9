"""What people see of runs and sweeps: tables and listings. Reads run directories; never asks W&B."""
