"""The life of a process, and what it takes of its machine: threads, files, memory."""
