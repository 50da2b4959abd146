"""Whole checkpoints: copied to another directory, or removed by hand."""
