"""Processes that compute together: ranks, and the calls that all of them make at once."""
