"""What holds for all tests."""

import os
import signal

from hypothesis import settings

# A first call compiles a kernel, and a loaded machine is slow: the time of one example says
# nothing. Examples are the same in every run, so that a build says something about the change it
# builds; MEGALITH_EXPLORE=1 tries others.
settings.register_profile(
    "megalith", deadline=None, derandomize="MEGALITH_EXPLORE" not in os.environ
)
settings.load_profile("megalith")

# A shell that starts the tests in the background has them ignore SIGINT, and what they start
# inherits that: nobody could press Ctrl-C in an example script.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
