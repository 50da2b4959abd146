"""What worker-0, the chief, does for the whole job."""
