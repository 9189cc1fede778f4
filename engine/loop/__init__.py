"""
The loop between the pure core and the world: the one part of the engine that awaits.

command → decide → append → fold → plan → steps → outcome facts → append …  `NodeLoop` takes
commands and plans, `Appender` stores facts under the fact locks, `Caller` calls the drivers.  None
of them knows NATS, gRPC or any clock but the `World`.
"""

from __future__ import annotations

from .appender import LoopSettings
from .node_loop import NodeLoop

__all__ = ["LoopSettings", "NodeLoop"]
