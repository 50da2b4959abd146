"""What a replica holds: copies of all ps, or of an exported model, and how they follow."""
