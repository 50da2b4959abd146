"""Compiled loops that the SDK and the servers share.

Importing one of them imports numba, which takes a while.
"""
