"""What a process says of itself: log lines and metrics."""
