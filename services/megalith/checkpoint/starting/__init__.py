"""What a job starts from: which checkpoint, up to which increment, and what of it."""
