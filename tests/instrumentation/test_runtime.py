"""What a run runs on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
import torch

from laggard import _runtime
from laggard.shared.peers import PeerGroup
from laggard.version import __version__

DRIVER = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (dvs-builder@U22)
GCC version:  gcc version 12.3.0
"""


def test_all_that_is_known_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Versions as torch and the driver say them, what the environment says, the layout; nothing is made up."""
    said = {"COMMIT": "4f2a", "IMAGE": "train:7", "PRECISION": "bf16", "TEAM": "speech"}
    for name, value in said.items():
        monkeypatch.setenv(f"LAGGARD_{name}", value)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 27, 3))
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    (tmp_path / "version").write_text(DRIVER)
    peers = PeerGroup()
    peers.learn({"PP": (1, 2), "DP": (0, 4)})
    assert _runtime.facts("gpt", peers.layout(), tmp_path / "version") == {
        "training.framework.version": f"torch {torch.__version__}",
        "process.runtime.version": platform.python_version(),
        "laggard.version": __version__,
        "training.cuda.version": "13.2",
        "training.nccl.version": "2.27.3",
        "training.driver.version": "580.82.07",
        "training.commit": "4f2a",
        "training.image": "train:7",
        "training.precision": "bf16",
        "training.layout": "pp-2.dp-4",
        "training.team": "speech",
        "training.workload": "gpt",
    }


def test_what_is_not_known_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a driver, CUDA, NCCL, a mesh or a word from outside there is no such attribute."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert set(_runtime.facts("", "", tmp_path / "absent")) == {
        "training.framework.version",
        "process.runtime.version",
        "laggard.version",
    }


@pytest.mark.parametrize(("visible", "prefix"), [("0,1", "GPU"), ("MIG-7", "MIG")])
def test_the_gpu_in_use_is_named_as_nvml_names_it(visible: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one on which most is reserved, and none while CUDA is not in use: it is not started for this."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_reserved=[0, 7, 7].__getitem__,
        get_device_properties=lambda index: SimpleNamespace(uuid=f"uuid-{index}"),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _runtime.hardware_id() == ""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.2")))
    assert _runtime.hardware_id() == f"{prefix}-uuid-1"
    cuda.get_device_properties = lambda _: SimpleNamespace()
    assert _runtime.hardware_id() == ""


@pytest.mark.parametrize(
    ("uuid", "written"),
    [
        # HIP's bytes are the digits of the unique id as text, which torch writes in hexadecimal again.
        (str(UUID(bytes=b"a1b2deadbeef0123")), "GPU-a1b2deadbeef0123"),
        # What is no such text is no identity: bytes of a CUDA device, or of a driver that gives none.
        ("8f2a1c00-3b1d-4c5e-9a7f-0123456789ab", ""), (str(UUID(int=0)), ""), (str(UUID(bytes=b"XX" + 14 * b"0")), ""),
    ],
)  # fmt: skip
def test_identity_on_rocm(uuid: str, written: str) -> None:
    """A GPU of AMD is called by its unique id, as ROCm's tools call it; a UUID that holds none gives no identity."""
    assert _runtime.rocm_id(uuid) == written
