"""The layout of the ranks: device meshes by the names of their dimensions, and pipeline stages."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook


class PeersHook(Hook):
    """Looks at meshes and stages as they are made."""

    name = "peers"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the modules that define them."""
        return {
            "torch.distributed.device_mesh": functools.partial(self._patch, "DeviceMesh", self._read_axes),
            "torch.distributed.pipelining.stage": functools.partial(
                self._patch, "_PipelineStageBase", self._read_place
            ),
        }

    def _patch(self, name: str, see: Callable[[Any], None], module: ModuleType) -> None:
        owner = getattr(module, name, None)
        if owner is not None:
            self.replace(owner, "__init__", functools.partial(self._wrap, self.guarded(see)))

    def _wrap(self, see: Callable[[Any], None], init: Callable[..., None]) -> Callable[..., None]:
        torch = sys.modules["torch"]

        @functools.wraps(init)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands in for the method
            init(made, *args, **kwargs)
            # A slice of a mesh inside a compiled graph says nothing new.
            if not torch.compiler.is_compiling():
                see(made)

        return __init__

    def _read_axes(self, mesh: Any) -> None:
        names = mesh.mesh_dim_names
        coordinate = mesh.get_coordinate() if names else None
        if coordinate is not None:
            sizes = [mesh.size(dimension) for dimension in range(len(names))]
            self.host.peers.learn(dict(zip(names, zip(coordinate, sizes, strict=True), strict=True)))

    def _read_place(self, stage: Any) -> None:
        # The place in the group and not the stage: with several stages a rank it is still one.
        self.host.peers.learn({"pp": (stage.group_rank, stage.group_size)})
