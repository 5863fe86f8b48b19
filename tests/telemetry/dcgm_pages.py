"""Pages as a dcgm-exporter writes them."""

from __future__ import annotations

from collections.abc import Mapping


def a_line(name: str, value: object, gpu: int = 0, host: str = "node-1", **labels: str) -> str:
    """One GPU's value of a family."""
    of_gpu = {"gpu": str(gpu), "UUID": f"GPU-{host}-{gpu}", "pci_bus_id": f"00000000:0{gpu}:00.0", "device": f"nvidia{gpu}"}
    more = {"modelName": "NVIDIA H100 80GB HBM3", "Hostname": host, "DCGM_FI_DRIVER_VERSION": "580.105.08", **labels}
    written = ",".join(f'{key}="{text}"' for key, text in {**of_gpu, **more}.items())
    return f"{name}{{{written}}} {value}\n"


USUAL: Mapping[str, object] = {
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_GPU_TEMP": 55,
    "DCGM_FI_DEV_POWER_USAGE": 512.25,
    "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.5,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0,
}


def a_page(gpus: int = 2, host: str = "node-1", labels: Mapping[str, str] | None = None, **values: object) -> bytes:
    """A page of some GPUs that are alike, with these values in the place of the usual ones; None: not exported."""
    page = ""
    for name, value in {**USUAL, **values}.items():
        if value is not None:
            page += f"# HELP {name} What it is.\n# TYPE {name} gauge\n"
            page += "".join(a_line(name, value, gpu, host, **(labels or {})) for gpu in range(gpus))
    return page.encode()
