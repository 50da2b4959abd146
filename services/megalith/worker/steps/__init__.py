"""The training loop: steps that overlap, and what happens between two steps."""
