"""Local checkpoints: find, check, load, hash, generate. Start at `local_model`."""
