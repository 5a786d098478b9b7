"""Speed and memory of the library beside PyTorch's own functions: ``python -m benchmarks.run``."""

import os

# The memory meter is torch's profiler, whose backend writes to stderr at every start and stop unless this is
# set before torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
