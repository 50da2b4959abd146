"""Compiled loops of the SDK: arrays in, arrays out.

Imported at the first pull or push, because numba takes a while.

Other modules of the client import kernels inside functions for that reason; `import
megalith.client` stays fast.
"""
