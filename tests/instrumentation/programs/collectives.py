"""Two ranks that call every kind of collective by hand, five times, in a loop without a loader or a module.

Nothing in here knows of laggard.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

STEPS = 5
OBJECT = {"name": "läufer", "values": list(range(40))}


def main() -> None:
    """Call them."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    parameter = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(STEPS):
        parameter.square().sum().backward()
        four = torch.ones(4)
        dist.all_reduce(four)
        dist.all_reduce(four, group=pair)
        work = dist.all_reduce(four, async_op=True)
        time.sleep(0.01)
        work.wait()
        dist.all_gather([torch.zeros(4), torch.zeros(4)], four)
        dist.all_gather_into_tensor(torch.zeros(8), four)
        dist.reduce_scatter_tensor(torch.zeros(2), four)
        dist.all_gather_object([None, None], OBJECT)
        dist.broadcast(four, 0)
        if rank == 0:
            dist.send(four, 1)
        else:
            dist.recv(four, 0)
        other = 1 - rank
        operations = [dist.P2POp(dist.isend, four, other), dist.P2POp(dist.irecv, torch.zeros(4), other)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        dist.barrier()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
