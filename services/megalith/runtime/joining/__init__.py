"""How a process joins its cluster and stays in it: discovery, session and lease."""
