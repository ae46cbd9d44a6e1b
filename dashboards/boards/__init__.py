"""The dashboards, a module each."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.boards.communication import COMMUNICATION
from dashboards.boards.cost import COST
from dashboards.boards.data import DATA
from dashboards.boards.fleet import FLEET
from dashboards.boards.gpu import GPUS
from dashboards.boards.hang import HANG
from dashboards.boards.memory import MEMORY
from dashboards.boards.ranks import RANKS
from dashboards.boards.run import RUN_BOARD
from dashboards.boards.telemetry import TELEMETRY

#: From the whole fleet down to what watches it.
BOARDS: tuple[Board, ...] = (
    FLEET,
    RUN_BOARD,
    RANKS,
    DATA,
    COMMUNICATION,
    MEMORY,
    GPUS,
    COST,
    HANG,
    TELEMETRY,
)
