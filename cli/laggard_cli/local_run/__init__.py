"""``laggard run --local``: a job, and beside it all that it takes to name who is slow.

Three kinds of processes. The first, which the user started, only stands for the job: it passes signals on and ends as
the job does (:mod:`~laggard_cli.local_run.job`). The job is its child, in the same process group and on the same
terminal. The monitor (:mod:`~laggard_cli.local_run.monitor`) is another child: it starts a node exporter and a
Prometheus, prints verdicts and ends with a card. Whatever becomes of the monitor, the job goes on.
"""
