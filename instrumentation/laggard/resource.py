"""The ``opentelemetry_resource_detector`` named ``laggard``: what the process runs in, for spans and logs.

Metrics carry run and rank on every data point, since what becomes of a resource differs by path. Needs the SDK.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource, ResourceDetector

from laggard import _identity, _messages
from laggard.shared.attributes import Attribute

_messages.begin_with_our_name()


class LaggardResourceDetector(ResourceDetector):
    """Adds run, rank, host and workload as the launcher's environment tells them."""

    def detect(self) -> Resource:
        """Return the resource; a run that is not known yet is left out."""
        identity = _identity.from_environment()
        known = {
            Attribute.RUN: identity.run,
            Attribute.RANK: str(identity.rank),
            Attribute.PEER_GROUP: identity.peer_group,
            Attribute.WORKLOAD: identity.workload,
            Attribute.HOST_NAME: identity.host,
        }
        return Resource({name: value for name, value in known.items() if value})
