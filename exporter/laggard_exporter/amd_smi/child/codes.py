"""Return codes of AMD SMI (amdsmi.h, amdsmi_status_t) that mean something here, and two of the child's own."""

from __future__ import annotations

SUCCESS = 0
INVAL = 1
NOT_SUPPORTED = 2
NOT_YET_IMPLEMENTED = 3
NO_PERM = 10
OUT_OF_RESOURCES = 15
INIT_ERROR = 18
NOT_FOUND = 31
NOT_INIT = 32
DRIVER_NOT_LOADED = 34
NO_DATA = 40
NO_DRV = 51
FILE_NOT_FOUND = 52

#: The library is not there, or is of a version whose structures are not known; it does not have the function.
LIBRARY_NOT_FOUND, VERSION_MISMATCH, FUNCTION_NOT_FOUND = -1, -2, -3
REFUSED = -4
