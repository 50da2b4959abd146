"""What holds for all tests."""

from hypothesis import settings

# A first call compiles a kernel, and a loaded machine is slow: the time of one example says nothing.
settings.register_profile("megalith", deadline=None)
settings.load_profile("megalith")
