"""A whole cluster on this machine: its processes, and how they are kept alive."""
