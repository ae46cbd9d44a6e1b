"""Facts of a rank for state files made in tests."""

from laggard.shared import statefile

FACTS = statefile.Facts(
    pid=4711,
    pid_start_ticks=99,
    start_boottime_ns=123_456_789,
    start_unix_ns=1_700_000_000_000_000_000,
    boot_id=statefile.boot_id(),
    run="läufer-7",
    host="node-1",
    peer_group="stage-0",
    workload="gpt",
    hardware_id="GPU-1",
    rank=3,
    local_rank=1,
    world_size=8,
    restarts=2,
    metrics_port=9465,
)
