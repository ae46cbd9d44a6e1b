"""Which ranks do the same work as this one, so that only equals are compared."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.shared.names import clip_name

#: Dimensions of a device mesh along which the work differs, by the names that programs give them.
_SPLITS = {
    "pp": frozenset({"pp", "pipeline", "pipeline_parallel", "pipe", "stage"}),
    "tp": frozenset({"tp", "tensor", "tensor_parallel", "model", "mp"}),
}


class PeerGroup:
    """What the script says and what its layout shows. Written on the training thread, read by the drain."""

    def __init__(self) -> None:
        #: Given by `laggard.set_peer_group()`, which wins.
        self.named = ""
        self._seen: dict[str, tuple[int, int]] = {}

    def learn(self, dimensions: Mapping[str, tuple[int, int]]) -> None:
        """Take this rank's index and the size of each dimension of a layout; the first one of a name counts."""
        # A new dictionary, since the drain may be walking through the old one.
        self._seen = {**{name.lower(): place for name, place in dimensions.items()}, **self._seen}

    def name(self, from_environment: str) -> str:
        """Return the group's name, empty while all ranks are peers as far as is known."""
        return clip_name(self.named) or from_environment or self._from_layout()

    def layout(self) -> str:
        """Return the dimensions of the layout with their sizes, such as ``pp-2.dp-4``; empty without a mesh."""
        return ".".join(f"{name}-{size}" for name, (_, size) in self._seen.items())

    def _from_layout(self) -> str:
        places = {split: self._place(names) for split, names in _SPLITS.items()}
        replicated = any(
            size > 1 and not any(name in names for names in _SPLITS.values()) for name, (_, size) in self._seen.items()
        )
        parts: list[str] = []
        for split, (index, size) in places.items():
            # Stages differ by design. Slices of a layer are equal by design and are told apart only where a rank
            # keeps a peer: alone in its group it could not be compared with anybody.
            if size > 1 and (split == "pp" or replicated):
                parts.append(f"{split}-{index}")
        return ".".join(parts)

    def _place(self, names: frozenset[str]) -> tuple[int, int]:
        return next((place for name, place in self._seen.items() if name in names), (0, 1))
