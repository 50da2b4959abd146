"""A model directory: its checkpoints and increments, the newest one, which are kept."""
