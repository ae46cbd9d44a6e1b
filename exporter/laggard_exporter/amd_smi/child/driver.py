"""Calls the functions of AMD SMI by their names.

Values are plain: structures become dictionaries, and what the library says it does not know is None. One call runs at
a time, and in one thread: before 26.2 the library mixes up GPUs, or ends the process, where two run.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from laggard_exporter.amd_smi.child import codes, layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GPU = 1  # amdsmi_processor_type_t
_MEMORY_BLOCK = 1  # amdsmi_gpu_block_t, AMDSMI_GPU_BLOCK_UMC
_OLDEST_RELEASE = 6  # of AMD SMI 24, ROCm 6.2: the one before has other structures
_MOST_PROCESSES, _MOST_PAGES, _MOST_HANDLES = 1024, 1 << 16, 256
_BUS_SHIFT, _DEVICE_SHIFT, _DOMAIN_SHIFT = 8, 3, 16

#: PCIe generations by their transfers in a second, in millions.
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


class _Fill(NamedTuple):
    """A function that fills a structure, which is ``zeros`` before: of texts, and of what the library adds to."""

    structure: Any
    zeros: bool = False


_FILLS = {
    "amdsmi_get_gpu_metrics_info": _Fill(layouts.GPU_METRICS),
    "amdsmi_get_pcie_info": _Fill(layouts.PCIE_INFO),
    "amdsmi_get_power_cap_info": _Fill(layouts.POWER_CAP_INFO),
    "amdsmi_get_gpu_vram_usage": _Fill(layouts.VRAM_USAGE),
    "amdsmi_get_clock_info": _Fill(layouts.CLOCK_INFO),
    "amdsmi_get_gpu_total_ecc_count": _Fill(layouts.ERROR_COUNT, zeros=True),
    "amdsmi_get_gpu_asic_info": _Fill(layouts.ASIC_INFO, zeros=True),
    "amdsmi_get_gpu_vbios_info": _Fill(layouts.VBIOS_INFO, zeros=True),
}


class _CodeError(Exception):
    """The library answered with a return code that is no success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def candidates() -> Iterator[tuple[int, str]]:
    """Yield version and path of the libraries that may be there: where ROCM_PATH says, the linker, ROCm's folder."""
    folder = os.environ.get("ROCM_PATH")
    for place in (f"{folder}/lib/" if folder else "", "", "/opt/rocm/lib/"):
        for version in layouts.VERSIONS:
            yield version, f"{place}libamd_smi.so.{version}"


class Driver:
    """AMD SMI, loaded by the first ``amdsmi_init``."""

    def __init__(self) -> None:
        self._library: Any = None
        self._version = 0
        self._handles: list[int] = []
        self._buffer = ctypes.create_string_buffer(layouts.SIZE)
        self._own: dict[str, Callable[..., Any]] = {
            "amdsmi_init": self._init,
            "amdsmi_get_processor_handles": self._count,
            "amdsmi_get_gpu_device_bdf": self._bdf,
            "amdsmi_get_gpu_driver_info": self._driver,
            "amdsmi_get_gpu_topo_numa_affinity": self._numa_node,
            "amdsmi_get_temp_metric": self._temperature,
            "amdsmi_get_gpu_vram_usage": self._memory,
            "amdsmi_get_pcie_info": self._pcie,
            "amdsmi_get_gpu_ecc_enabled": self._ecc_enabled,
            "amdsmi_get_gpu_total_ecc_count": self._ecc_count,
            "amdsmi_get_gpu_bad_page_info": self._bad_pages,
            "amdsmi_get_gpu_process_list": self._processes,
        }

    def call(self, function: str, device: Any, arguments: Any) -> tuple[int, Any]:
        """Return AMD SMI's return code and the plain value of one call."""
        try:
            subject = () if device is None else (self._handles[int(device)],)
            if function in self._own:
                return codes.SUCCESS, self._own[function](*subject, *arguments)
            return codes.SUCCESS, self._filled(function, *subject, *arguments)
        except _CodeError as error:
            return error.code, None
        except Exception as error:  # one call must not end the process
            return codes.REFUSED, repr(error)

    def _run(self, function: str, *arguments: Any) -> None:
        called = getattr(self._library, function, None)
        if called is None:  # a library that is older than the function
            raise _CodeError(codes.FUNCTION_NOT_FOUND)
        called.restype = ctypes.c_uint32
        if code := called(*(ctypes.c_void_p(item) if isinstance(item, int) else item for item in arguments)):
            raise _CodeError(code)

    def _filled(self, function: str, handle: int, *arguments: int) -> dict[str, Any]:
        structures, zeros = _FILLS[function]
        structure: Any = structures if isinstance(structures, type) else structures[self._version]
        ctypes.memset(self._buffer, 0 if zeros else 0xFF, layouts.SIZE)
        self._run(function, handle, *map(ctypes.c_uint32, arguments), self._buffer)
        return layouts.fields(structure.from_buffer(self._buffer))

    # The session.

    def _init(self, flags: int) -> bool:
        if self._library is None:
            self._load()
        self._run("amdsmi_init", ctypes.c_uint64(flags))
        self._handles = list(self._gpus())
        return True

    def _load(self) -> None:
        for version, path in candidates():
            try:
                self._library = ctypes.CDLL(path)
            except OSError:
                continue
            self._version = version
            words = (ctypes.c_uint32 * 8)()
            self._run("amdsmi_get_lib_version", words)
            # 24.6.2, and from 26 on without the year before the number of the version.
            if words[0] != version or (version == min(layouts.VERSIONS) and words[1] < _OLDEST_RELEASE):
                raise _CodeError(codes.VERSION_MISMATCH)
            return
        raise _CodeError(codes.LIBRARY_NOT_FOUND)

    def _list(self, function: str, *arguments: Any) -> list[int]:
        count, handles = ctypes.c_uint32(_MOST_HANDLES), (ctypes.c_void_p * _MOST_HANDLES)()
        self._run(function, *arguments, ctypes.byref(count), handles)
        return [handle for handle in handles[: count.value] if handle]

    def _gpus(self) -> Iterator[int]:
        for socket in self._list("amdsmi_get_socket_handles"):
            for handle in self._list("amdsmi_get_processor_handles", socket):
                kind = ctypes.c_uint32()
                self._run("amdsmi_get_processor_type", handle, ctypes.byref(kind))
                if kind.value == _GPU:
                    yield handle

    def _count(self) -> int:
        return len(self._handles)

    # Identity.

    def _bdf(self, handle: int) -> str:
        word = ctypes.c_uint64()
        self._run("amdsmi_get_gpu_device_bdf", handle, ctypes.byref(word))
        value = word.value
        return (
            f"{value >> _DOMAIN_SHIFT:04x}:{value >> _BUS_SHIFT & 0xFF:02x}:"
            f"{value >> _DEVICE_SHIFT & 0x1F:02x}.{value & 7:x}"
        )

    def _driver(self, handle: int) -> str:
        ctypes.memset(self._buffer, 0, layouts.SIZE)
        self._run("amdsmi_get_gpu_driver_info", handle, self._buffer)
        # The version is the first text of the structure, whatever the length of its texts.
        return self._buffer.value.decode("utf-8", "replace")

    def _numa_node(self, handle: int) -> int:
        node = ctypes.c_int32(-1)
        self._run("amdsmi_get_gpu_topo_numa_affinity", handle, ctypes.byref(node))
        return node.value

    # What a scrape asks.

    def _temperature(self, handle: int, sensor: int, metric: int) -> int:
        value = ctypes.c_int64()
        arguments = ctypes.c_uint32(sensor), ctypes.c_uint32(metric), ctypes.byref(value)
        self._run("amdsmi_get_temp_metric", handle, *arguments)
        return value.value

    def _memory(self, handle: int) -> dict[str, Any]:
        found = self._filled("amdsmi_get_gpu_vram_usage", handle)
        total, used = found["vram_total"], found["vram_used"]
        free = None if total is None or used is None or total < used else total - used
        return {**found, "vram_free": free}

    def _pcie(self, handle: int) -> dict[str, Any]:
        found = self._filled("amdsmi_get_pcie_info", handle)
        speeds = {"pcie_generation": "pcie_speed", "max_pcie_generation": "max_pcie_speed"}
        return {**found, **{name: _GENERATIONS.get(found[speed]) for name, speed in speeds.items()}}

    def _blocks(self, handle: int) -> int:
        blocks = ctypes.c_uint64()
        self._run("amdsmi_get_gpu_ecc_enabled", handle, ctypes.byref(blocks))
        return blocks.value

    def _ecc_enabled(self, handle: int) -> bool:
        return bool(self._blocks(handle) & _MEMORY_BLOCK)

    def _ecc_count(self, handle: int) -> dict[str, Any]:
        # Without a block that counts, the library says zero and success.
        if not self._blocks(handle):
            raise _CodeError(codes.NOT_SUPPORTED)
        return self._filled("amdsmi_get_gpu_total_ecc_count", handle)

    def _bad_pages(self, handle: int) -> dict[str, int]:
        """Return the pages by status, and whether one could not be taken out of use, or too many were."""
        count = ctypes.c_uint32()
        self._run("amdsmi_get_gpu_bad_page_info", handle, ctypes.byref(count), None)
        records = (layouts.RETIRED_PAGE * min(count.value, _MOST_PAGES))()
        if count.value:
            count.value = len(records)
            self._run("amdsmi_get_gpu_bad_page_info", handle, ctypes.byref(count), records)
        found = [record.status for record in records[: count.value]]
        reserved, pending, unreservable = (found.count(status) for status in range(3))
        threshold = ctypes.c_uint32(0xFFFFFFFF)
        try:  # a younger function, and for root alone
            self._run("amdsmi_get_gpu_bad_page_threshold", handle, ctypes.byref(threshold))
        except _CodeError:
            threshold.value = 0xFFFFFFFF
        failed = bool(unreservable) or 0 < threshold.value <= len(found)
        return {"reserved": reserved, "pending": bool(pending), "failed": failed}

    def _processes(self, handle: int) -> list[tuple[int, int | None]]:
        """Return number and bytes of device memory of each process."""
        kind, count = layouts.PROC_INFO[self._version], ctypes.c_uint32()
        self._run("amdsmi_get_gpu_process_list", handle, ctypes.byref(count), None)
        if not count.value:
            return []
        # One may start meanwhile.
        count.value = room = min(count.value + 8, _MOST_PROCESSES)
        processes = (kind * room)()
        try:
            self._run("amdsmi_get_gpu_process_list", handle, ctypes.byref(count), processes)
        except _CodeError as error:  # more have started: those that fit are there
            if error.code != codes.OUT_OF_RESOURCES:
                raise
        return [(process.pid, process.vram_mem) for process in processes[: min(count.value, room)]]
