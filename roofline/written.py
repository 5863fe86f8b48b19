"""A worker as people describe it: the formats of weights and cache, and how many GPUs share the work how."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.deployment import Deployment, Parallelism
from roofline.gpu import Gpu
from roofline.kv_cache import kv_width
from roofline.models.known import KnownModel
from roofline.quantization import named_scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How a worker is described. ``None``: not said."""

    weight_dtype: str | None = None
    kv_dtype: str | None = None
    gpus: int | None = None  # GPUs of one worker
    tensor: int | None = None
    pipeline: int = 1
    data: int = 1
    is_expert_parallel: bool = False

    def parallelism(self) -> Parallelism:
        """How the GPUs share the work: what is not said of ``gpus`` is tensor parallelism.

        ``ValueError`` if the numbers contradict each other.
        """
        stated = (self.tensor or 1) * self.pipeline * self.data
        gpus = self.gpus or stated
        if self.tensor is None and gpus % stated == 0:
            return Parallelism(tensor=gpus // stated, pipeline=self.pipeline, data=self.data, expert=self.is_expert_parallel)
        if gpus != stated:
            raise ValueError(
                f"{gpus} GPUs a worker are not {self.tensor or 1} (tensor) x {self.pipeline} (pipeline) x {self.data} (data)"
            )
        return Parallelism(tensor=self.tensor or 1, pipeline=self.pipeline, data=self.data, expert=self.is_expert_parallel)


def deployment_of(model: KnownModel, gpu: Gpu, written: Written) -> Deployment:
    """The worker. ``ValueError`` names the format, GPU or count that does not suit the model."""
    shape = model.shape
    wanted = written.weight_dtype or model.width_hint
    weights = shape.scheme if wanted in (None, "auto") else named_scheme(str(wanted), shape.native)
    kv = kv_width(written.kv_dtype or "auto", shape)
    deployment = Deployment(shape, gpu, weights=weights, kv=kv, parallelism=written.parallelism())
    _ = deployment.rates  # asks for every peak that is needed, so that a GPU without one is found here
    return deployment
