"""What all files of a checkpoint have in common: manifest, blocks, checksums, JSON."""
