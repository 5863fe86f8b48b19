"""The columns of a sheet: one worker each, from all combinations of options or from the pools of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from proxy.planning.asked import Asked, PlanOptionError, question_of
from roofline.capacity.memory import smallest_fit
from roofline.deployment import Deployment
from roofline.gpu import Gpu
from roofline.gpu_given import resolve_gpu
from roofline.gpu_names import UnknownGpu
from roofline.gpus import GPUS
from roofline.models.known import KnownModel
from roofline.plan.plan import Plan, make_plan
from roofline.plan.question import Question
from roofline.written import Written, deployment_of
from simulator.model_files import load_model

MOST_COLUMNS = 16
_AUTO = "auto"
_FIGURES = "bf16=9.9e14,bandwidth=3.35e12,memory=80e9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One worker, planned. ``title`` says how it differs from the other columns."""

    title: str
    model: KnownModel
    engine: str
    weights_from: str  # where the format of the weights was taken from
    plan: Plan
    assumed: frozenset[str] = field(default_factory=frozenset)  # names of options that were not given

    @property
    def kv_dtype(self) -> str:
        """How the cache is stored, "auto" resolved."""
        return _kv_dtype(self.plan.deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """All columns, and what was left out and why."""

    columns: tuple[Column, ...]
    notices: tuple[str, ...] = ()


def columns_of(asked: Asked, environ: Mapping[str, str]) -> Columns:
    """All columns. `PlanOptionError` for options that cannot be, `ConfigError` for a configuration with problems."""
    try:
        return _from_config(asked, asked.config, environ) if asked.config else Columns(columns=_from_options(asked))
    except PlanOptionError:
        raise
    except (ValueError, OSError) as error:
        raise PlanOptionError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One of the combinations."""

    model: str
    gpu: str
    count: str | None
    weight_dtype: str | None
    kv_dtype: str | None


def _from_options(asked: Asked) -> tuple[Column, ...]:
    models = [model.strip() for model in asked.models if model.strip()]
    gpus = [gpu for text in asked.gpus for gpu in ([text] if "=" in text else _split([text]))]
    if not models:
        raise PlanOptionError("--model is needed: a known name such as llama-3.1-8b, or the path of a config.json; or --config")
    if not gpus:
        raise PlanOptionError("--gpu is needed: an id such as h100-sxm, or figures: " + _FIGURES)
    counts, weights, kvs = (_split(values) or (None,) for values in (asked.gpu_counts, asked.weight_dtypes, asked.kv_dtypes))
    choices = [
        _Choice(model=model, gpu=gpu, count=count, weight_dtype=weight, kv_dtype=kv)
        for model, gpu, count, weight, kv in product(models, gpus, counts, weights, kvs)
    ]
    if len(choices) > MOST_COLUMNS:
        raise PlanOptionError(f"these options make {len(choices)} columns; at most {MOST_COLUMNS} are shown side by side")
    varying = {name for name, values in (("model", models), ("weights", weights), ("kv", kvs)) if len(values) > 1}
    question = question_of(asked)
    return tuple(_column(choice, asked, question, varying) for choice in choices)


def _column(choice: _Choice, asked: Asked, question: Question, varying: set[str]) -> Column:
    model, gpu = load_model(choice.model, Path()), _gpu(choice.gpu)
    written = Written(
        weight_dtype=choice.weight_dtype,
        kv_dtype=choice.kv_dtype,
        gpus=None if choice.count == _AUTO else _count(choice.count),
        tensor=asked.tensor,
        pipeline=asked.pipeline or 1,
        data=asked.data or 1,
        is_expert_parallel=asked.is_expert_parallel,
    )
    if choice.count == _AUTO:
        deployment = _smallest(model, choice, asked, written, question)
    else:
        deployment = deployment_of(model, gpu, written)
    count = deployment.parallelism.gpus
    parts = [f"{count} x {gpu.id}"]
    if "model" in varying:
        parts.insert(0, model.shape.name.rpartition("/")[2])
    if "weights" in varying:
        parts.append(deployment.weights.name)
    if "kv" in varying:
        parts.append(f"kv {_kv_dtype(deployment)}")
    return _planned(" ".join(parts), model, choice.weight_dtype, deployment, question, asked)


def _kv_dtype(deployment: Deployment) -> str:
    return deployment.shape.native.name if deployment.kv.name == "auto" else deployment.kv.name


def _gpu(spec: str) -> Gpu:
    try:
        return resolve_gpu(spec)
    except UnknownGpu as error:
        raise PlanOptionError(f"{error}; as an option: --gpu {_FIGURES}") from None


def _planned(
    title: str, model: KnownModel, weight_dtype: str | None, deployment: Deployment, question: Question, asked: Asked
) -> Column:
    try:
        plan = make_plan(deployment, question)
    except ValueError as error:
        if deployment.gpu.memory_bytes is None and deployment.gpu.driver_memory_bytes is None:
            raise PlanOptionError(_memory_is_missing(deployment.gpu)) from None
        raise PlanOptionError(f"{title}: {error}") from None
    return Column(
        title=title,
        model=model,
        engine=asked.engine,
        weights_from=_weights_from(model, weight_dtype),
        plan=plan,
        assumed=frozenset(name for name in Asked.__dataclass_fields__ if getattr(asked, name) is None),
    )


def _memory_is_missing(gpu: Gpu) -> str:
    if gpu.id in GPUS:
        return f"{gpu.id} has as much memory as the machine; say how much: --gpu based_on={gpu.id},memory=256e9"
    return f"how much memory {gpu.id} has is not known; add memory=80e9 (bytes) to its figures"


def _weights_from(model: KnownModel, weight_dtype: str | None) -> str:
    if weight_dtype not in (None, _AUTO):
        return "given"
    if weight_dtype is None and model.width_hint is not None:
        return "read from the model's name"
    return "as the model's own checkpoint has it"


def _smallest(model: KnownModel, choice: _Choice, asked: Asked, written: Written, question: Question) -> Deployment:
    if asked.tensor or asked.pipeline or asked.data or asked.is_expert_parallel:
        raise PlanOptionError("--gpus auto chooses how GPUs share the work; give a number with --tensor-parallel and the like")
    one = deployment_of(model, _gpu(choice.gpu), replace(written, gpus=1))
    found = smallest_fit(one, sequence_tokens=question.workload.total_tokens, settings=question.settings)
    if found is None:
        raise PlanOptionError(
            f"no number of {one.gpu.id} up to 128 holds {model.shape.name} and one request; "
            "try narrower weights (--weight-dtype), or say --gpus to see the sheet anyway"
        )
    return found.deployment


def _from_config(asked: Asked, path: Path, environ: Mapping[str, str]) -> Columns:
    from proxy.planning.pools import pools_of  # noqa: PLC0415 - the configuration's reader, only for those who have one

    given = [option for option, values in _of_the_configuration(asked).items() if values]
    if given:
        raise PlanOptionError(f"--config says what runs where; leave {', '.join(given)} out")
    pools, notices = pools_of(path, environ, total_tokens=question_of(asked).workload.total_tokens)
    if not pools:
        raise PlanOptionError(f"no pool of {path} can be planned: " + "; ".join(notices))
    if len(pools) > MOST_COLUMNS:
        raise PlanOptionError(f"{path} has {len(pools)} pools with a GPU; at most {MOST_COLUMNS} are shown side by side")
    columns = []
    for pool in pools:
        question = question_of(replace(asked, workers=pool.workers))
        columns.append(_planned(pool.title, pool.model, pool.weight_dtype, pool.deployment, question, asked))
    return Columns(columns=tuple(columns), notices=notices)


def _of_the_configuration(asked: Asked) -> Mapping[str, object]:
    """Options that a configuration answers."""
    return {
        "--model": asked.models,
        "--gpu": asked.gpus,
        "--gpus": asked.gpu_counts,
        "--weight-dtype": asked.weight_dtypes,
        "--kv-dtype": asked.kv_dtypes,
        "--tensor-parallel": asked.tensor,
        "--pipeline-parallel": asked.pipeline,
        "--data-parallel": asked.data,
        "--expert-parallel": asked.is_expert_parallel,
        "--workers": asked.workers,
    }


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise PlanOptionError(f"--gpus is a count such as 1, 2 or 8, or auto, not {text!r}")
    return int(text)


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in values for part in text.split(",") if part.strip())
