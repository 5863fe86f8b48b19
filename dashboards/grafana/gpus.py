"""A row on what the GPUs say themselves, from NVIDIA's DCGM exporter where there is one.

Its series know hosts and GPUs, not workers: which host a worker runs on is chosen at the top of the board.
"""

from __future__ import annotations

from dashboards.grafana.values import Panel, Query, Row, Unit, Variable

HOST = Variable(name="gpu_host", label="GPU host", values="label_values(DCGM_FI_DEV_GPU_UTIL, Hostname)")

LABELS = frozenset({"job", "instance", "Hostname", "gpu", "UUID", "device", "modelName"})
"""What every series of the exporter bears; in Kubernetes also namespace, pod and container."""

_OF_HOST = '{Hostname=~"$gpu_host"}'
_NAME = "{{Hostname}} GPU {{gpu}}"


def _each(name: str, scale: str = "") -> tuple[Query, ...]:
    return (Query(expr=f"max by (Hostname, gpu) ({name}{_OF_HOST}){scale}", legend=_NAME),)


def row() -> Row:
    """Collapsed: most of what it answers is asked only when a worker is slower than its peers for no reason of its own."""
    return Row(
        title="GPUs, from the DCGM exporter",
        is_collapsed=True,
        panels=(
            Panel(
                title="Tensor cores active",
                description="Share of cycles in which the tensor cores work: high while prompts are computed.",
                unit=Unit.SHARE,
                queries=_each("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
                most=1,
            ),
            Panel(
                title="Memory active",
                description="Share of cycles in which the memory sends or receives: high while tokens are generated.",
                unit=Unit.SHARE,
                queries=_each("DCGM_FI_PROF_DRAM_ACTIVE"),
                most=1,
            ),
            Panel(
                title="GPU busy",
                description="Share of time with any kernel running. High says little; low beside waiting requests says that "
                "the "
                "host does not keep up.",
                unit=Unit.SHARE,
                queries=_each("DCGM_FI_DEV_GPU_UTIL", " / 100"),
                most=1,
            ),
            Panel(
                title="Clock of the processors",
                description="A clock that fell under load is a GPU that is too hot or has too little power: the worker is "
                "slower "
                "than itself.",
                unit=Unit.HERTZ,
                queries=_each("DCGM_FI_DEV_SM_CLOCK", " * 1e6"),
            ),
            Panel(
                title="Power",
                description="What each GPU draws; at its limit the clock falls.",
                unit=Unit.WATTS,
                queries=_each("DCGM_FI_DEV_POWER_USAGE"),
            ),
            Panel(
                title="Temperature",
                description="Of each GPU; look beside it at the clock.",
                unit=Unit.CELSIUS,
                queries=_each("DCGM_FI_DEV_GPU_TEMP"),
            ),
            Panel(
                title="Memory in use",
                description="Of each GPU. vLLM takes its share at the start, so it hardly moves; KV use says how much is "
                "filled.",
                unit=Unit.BYTES,
                queries=_each("DCGM_FI_DEV_FB_USED", " * 2 ^ 20"),
            ),
            Panel(
                title="Last XID error",
                description="Number of the last error that the driver reported for each GPU; 0 is none. 48, 63, 64, 79, 94, "
                "95 are "
                "faults of the hardware.",
                unit=Unit.RATIO,
                queries=_each("DCGM_FI_DEV_XID_ERRORS"),
            ),
        ),
    )
