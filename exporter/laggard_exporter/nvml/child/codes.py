"""Return codes of NVML functions (nvml.h, nvmlReturn_t) that the child needs, and two of its own."""

from __future__ import annotations

SUCCESS = 0
NOT_SUPPORTED = 3
NOT_FOUND = 6
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999

#: A text that is not UTF-8, and a call that nvidia-ml-py refused.
NO_TEXT, REFUSED = -1, -2
