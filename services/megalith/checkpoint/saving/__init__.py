"""Writing what one ps holds: all of it, or what changed since the increment before."""
