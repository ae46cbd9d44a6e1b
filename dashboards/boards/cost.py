"""Money, energy and carbon of runs."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import Query, number, series, top

COST = Board(
    "cost",
    "Cost, energy and carbon",
    "What runs cost, what of it is lost and to which cause. Price, carbon intensity and the overhead of a data centre "
    "are thresholds that you set; without a price, nothing is shown as money.",
    [
        Row(
            "Now",
            [
                number(
                    "Cost of an hour",
                    "Of all runs.",
                    "currencyUSD",
                    Query("sum(run:training_cost:rate) * 3600", "an hour"),
                ),
                number(
                    "Lost in an hour",
                    "Of all runs: cost of time that went into no step that counts.",
                    "currencyUSD",
                    Query("sum(run_reason:training_cost_lost:rate) * 3600", "an hour"),
                ),
                number("Power", "Of the GPUs of all runs.", "watt", Query("sum(run:training_energy_joules:rate)", "W")),
                number(
                    "Carbon of an hour",
                    "Of all runs, the data centre's overhead included.",
                    "massg",
                    Query("sum(run:training_carbon_grams:rate) * 3600", "an hour"),
                ),
            ],
        ),
        Row(
            "Money",
            [
                series(
                    "Cost of runs",
                    "An hour, the most expensive runs.",
                    "currencyUSD",
                    Query(top("run:training_cost:rate{at} * 3600"), "{{training_run}} {{cluster}}"),
                ),
                series(
                    "Cost of lost time",
                    "An hour, by cause, all runs.",
                    "currencyUSD",
                    Query(
                        "sum by (training_reason) (run_reason:training_cost_lost:rate) * 3600", "{{training_reason}}"
                    ),
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Energy",
            [
                series(
                    "Power of runs",
                    "The GPUs of the runs that draw most.",
                    "watt",
                    Query(top("run:training_energy_joules:rate{at}"), "{{training_run}} {{cluster}}"),
                ),
                series(
                    "Energy of a sample",
                    "Falls when the same hardware trains faster; the runs with the most.",
                    "joule",
                    Query(top("run:training_sample_energy_joules:mean{at}"), "{{training_run}} {{cluster}}"),
                ),
                series(
                    "Carbon of runs",
                    "An hour, the runs with the most.",
                    "massg",
                    Query(top("run:training_carbon_grams:rate{at} * 3600"), "{{training_run}} {{cluster}}"),
                ),
                series(
                    "Model FLOP/s utilization",
                    "What the model needs, over what the GPUs can; where the training script gives laggard.log the "
                    "FLOPs of a step.",
                    "percentunit",
                    Query(top("run:training_mfu:ratio{at}"), "{{training_run}} {{cluster}}"),
                    most=0.6,
                ),
            ],
        ),
    ],
    variables=(),
    since="now-24h",
)
