"""What the command line shows of a cluster: its words, its tables."""
