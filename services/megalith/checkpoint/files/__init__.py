"""The files of a checkpoint, one module a kind: rows, variables, filters, blobs, pushes."""
