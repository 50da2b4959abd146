"""What a worker and the controller tell each other: cluster, progress, pieces."""
