"""dcgm-exporter in place of our node exporter, and ours in its place."""

from __future__ import annotations

from scenario import Firing, Play, Scenario, ranks
from world import Device

FAMILIES = ("dcgm", "goodput", "gpu", "optional/dcgm")
EVERY = 60

GIB = 2.0**30


def dcgm() -> Scenario:
    """With dcgm-exporter alone a GPU's faults name the rank, which says what it runs on, in base units."""
    everyone = ranks(3)
    scenario = Scenario(everyone, tick=30)
    model = "modelName=NVIDIA H100 80GB HBM3"
    for rank in everyone:
        rank.hw_id = f"GPU-{rank.rank}"
        rank.has_exporter = False
        scenario.world.devices.append(
            Device(
                rank.hw_id, label="UUID",
                gauges={
                    f"DCGM_FI_DEV_{name}{{{model},gpu={rank.rank}}}": value
                    for name, value in {
                        "GPU_UTIL": 100, "FB_USED": 1024, "POWER_USAGE": 700, "GPU_TEMP": 60, "SM_CLOCK": 1980,
                        "ROW_REMAP_FAILURE": 0, "XID_ERRORS": 0, "PCIE_LINK_WIDTH": 16, "PCIE_MAX_LINK_WIDTH": 16,
                    }.items()
                },
                counters={
                    f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{model}}}": 700_000,
                    f"DCGM_FI_DEV_THERMAL_VIOLATION{{{model}}}": 0,
                    f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{model}}}": 0,
                },
            )
        )  # fmt: skip
    scenario.after(minutes=8)
    scenario.never()
    gpu = '{uuid="GPU-0"}'
    scenario.value('sum by (uuid) (gpu_memory_used_bytes{uuid="GPU-0"})', {gpu: GIB})
    scenario.value('sum by (uuid) (gpu_clock_hertz{clock="sm", uuid="GPU-0"})', {gpu: 1.98e9})
    scenario.value('sum by (uuid) (gpu_utilization_ratio{uuid="GPU-0"})', {gpu: 1})
    scenario.value('sum by (uuid) (round(rate(gpu_energy_joules_total{uuid="GPU-0"}[2m])))', {gpu: 700})
    scenario.value('count by (name) (gpu_info{uuid="GPU-0"})', {'{name="NVIDIA H100 80GB HBM3"}': 1})
    first, second, third = scenario.world.devices
    first.gauges[f"DCGM_FI_DEV_XID_ERRORS{{{model},gpu=0}}"] = 79
    first.gauges[f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{model},gpu=0}}"] = 1
    second.counters[f"DCGM_FI_DEV_THERMAL_VIOLATION{{{model}}}"] = 0.5e9
    third.counters[f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{model}}}"] = 1 / 64
    third.gauges[f"DCGM_FI_DEV_PCIE_LINK_WIDTH{{{model},gpu=2}}"] = 8
    # What the application brought upon itself.
    third.gauges[f"DCGM_FI_DEV_XID_ERRORS{{{model},gpu=2}}"] = 31
    scenario.after(minutes=14)

    def fault(alert: str, rank: int, **labels: str) -> Firing:
        return Firing(alert, rank, host="host-a", more=(("uuid", f"GPU-{rank}"), *labels.items()))

    scenario.fires(
        fault("TrainingGpuXidCritical", 0, xid="79"),
        fault("TrainingGpuRowRemap", 0, state="failed"),
        fault("TrainingGpuThrottled", 1, reason="thermal"),
        fault("TrainingGpuEccErrors", 2),
        fault("TrainingGpuPcieDegraded", 2, link="width"),
    )
    return scenario


def upgrade() -> Scenario:
    """Nodes are upgraded one by one: each GPU counts once, in base units, by old names, new ones, or both."""
    everyone = ranks(4)
    scenario = Scenario(everyone, tick=30)
    old = {
        "GPU_UTIL": 96.875, "FB_USED": 1024, "POWER_USAGE": 700, "SM_CLOCK": 1980, "GPU_TEMP": 60,
    }  # fmt: skip
    new = {
        "GPU_UTIL_RATIO": 0.96875, "FB_USED_BYTES": GIB, "BOARD_POWER_WATTS": 700, "SM_CLOCK_HERTZ": 1.98e9,
        "GPU_TEMP_CELSIUS": 60,
    }  # fmt: skip
    # The third is upgraded now, by a job of its own; DCGM 4.6 gives the fourth's ratio in percent.
    shown = ({"Hostname": old}, {"hostname": new}, {"Hostname": old, "hostname": new}, {"hostname": new})
    for rank, pages in zip(everyone, shown, strict=True):
        rank.hw_id = f"GPU-{rank.rank}"
        rank.has_exporter = False
        for label, page in pages.items():
            energy = "GPU_ENERGY_JOULES_TOTAL" if page is new else "TOTAL_ENERGY_CONSUMPTION"
            scenario.world.devices.append(
                Device(
                    rank.hw_id, label="UUID", more=f"gpu={rank.rank},modelName=A,{label}=host-a",
                    gauges={f"DCGM_FI_DEV_{name}": value for name, value in page.items()},
                    counters={f"DCGM_FI_DEV_{energy}": 512 if page is new else 512_000},
                )
            )  # fmt: skip
    scenario.world.devices[-1].gauges["DCGM_FI_DEV_GPU_UTIL_RATIO"] = 96.875
    scenario.after(minutes=8)
    scenario.never()
    each = {f'{{uuid="GPU-{rank.rank}"}}': 1.0 for rank in everyone}
    for series, value in {
        "round(gpu_utilization_ratio, 1 / 32)": 0.96875, "gpu_memory_used_bytes": GIB, "gpu_power_watts": 700,
        'gpu_clock_hertz{clock="sm"}': 1.98e9,
        'gpu_temperature_celsius{sensor="gpu"}': 60,
    }.items():  # fmt: skip
        scenario.value(f"sum by (uuid) ({series})", dict.fromkeys(each, value))
    scenario.value("sum by (uuid) (round(rate(gpu_energy_joules_total[2m])))", dict.fromkeys(each, 512))
    scenario.value("count by (uuid) (gpu_info)", each)
    run = 'run:training_energy_joules:rate{training_run="run-a"}'
    scenario.value(f"round(max by (training_run) ({run}))", {'{training_run="run-a"}': 4 * 512})
    return scenario


def compatibility() -> Scenario:
    """Our series are there under both of dcgm-exporter's names, once each, and do not come back as an adapter's."""
    scenario = Scenario(ranks(1), tick=30)
    scenario.world.devices.append(
        Device(
            "GPU-7",
            gauges={
                "gpu_info{index=0,name=NVIDIA L4,pci_bus_id=0000:01:00.0}": 1, "gpu_utilization_ratio": 0.5,
                "gpu_memory_used_bytes": 3 * GIB, "gpu_clock_hertz{clock=sm}": 2e9,
                "gpu_temperature_celsius{sensor=gpu}": 60,
            },
            counters={"gpu_energy_joules_total": 64},
        )
    )  # fmt: skip
    scenario.after(minutes=5)
    labels = (
        '{laggard_adapter="compatibility", instance="exporter:9495", UUID="GPU-7", gpu="0", modelName="NVIDIA L4", '
        'pci_bus_id="0000:01:00.0"}'
    )
    for name, value in {
        "GPU_UTIL": 50, "FB_USED": 3072, "SM_CLOCK": 2000, "GPU_TEMP": 60,
        "GPU_UTIL_RATIO": 0.5, "FB_USED_BYTES": 3 * GIB, "SM_CLOCK_HERTZ": 2e9, "GPU_TEMP_CELSIUS": 60,
    }.items():  # fmt: skip
        # One for each job, as dcgm-exporter's would be.
        scenario.value(f"max without (job) (DCGM_FI_DEV_{name})", {labels: value})
    scenario.value("round(max without (job) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[2m])))", {labels: 64_000})
    scenario.value("round(max without (job) (rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[2m])))", {labels: 64})
    scenario.value('{__name__=~"gpu_.+", laggard_adapter!=""}', {})
    return scenario


def another_name() -> Scenario:
    """Where dcgm-exporter writes a model with dashes, GPUs that ours names too are compared and counted by our name."""
    everyone = ranks(4)
    scenario = Scenario(everyone, tick=30)
    for rank in everyone:
        uuid = f"GPU-{rank.rank}"
        model = f"gpu={rank.rank},modelName=NVIDIA-H100-80GB-HBM3"
        scenario.world.devices += (
            Device(uuid, label="UUID", gauges={f"DCGM_FI_DEV_GPU_TEMP{{{model}}}": 60}),
            Device(
                uuid, rank.run, rank.rank,
                gauges={
                    f"gpu_info{{index={rank.rank},name=NVIDIA H100 80GB HBM3}}": 1, "gpu_up": 1,
                    "gpu_nvlink_links{state=inactive}": 0, "gpu_nvlink_links{state=active}": 18,
                },
            ),
        )  # fmt: skip
    scenario.after(minutes=6)
    scenario.world.devices[5].gauges |= {"gpu_nvlink_links{state=inactive}": 6, "gpu_nvlink_links{state=active}": 12}
    scenario.after(minutes=24)
    scenario.fires(Firing("TrainingGpuNvlinkDegraded", 2, host="host-a", more=(("uuid", "GPU-2"),)))
    scenario.value(
        "run_model:training_gpus:count",
        {'run_model:training_gpus:count{training_run="run-a", gpu="NVIDIA H100 80GB HBM3"}': 4},
    )
    return scenario


PLAYS: tuple[Play, ...] = (dcgm, upgrade, compatibility, another_name)
