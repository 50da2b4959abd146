"""Settings of a process, and the command line that they come from."""
