"""From a validated configuration to the values that the processes work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from proxy.config.bounds import PoolAdmission
from proxy.config.dcgm import DcgmSource
from proxy.config.pools import PoolConfig, PrefillConfig, stage_name
from proxy.config.settings import Config
from proxy.config.tls import listener_files, worker_tls
from proxy.config.tokenizer import TokenizerConfig
from proxy.config.worker_url import parse_worker_url
from proxy.config.workers import WorkerConfig
from routing.quota import Quota, QuotaSharing
from routing.topology import (
    Admission,
    Following,
    HealthRules,
    Hedging,
    Key,
    Limits,
    Model,
    Pool,
    Retries,
    TokenizerSource,
    Topology,
    Worker,
    WorkerTls,
    assemble,
)

HERE = Path()


def build_topology(config: Config, folder: Path = HERE) -> Topology:
    """Return what is configured as plain values; the file lies in ``folder``.

    Indices follow the order of the file, pools within a model smallest range first: every process that builds from the
    same file agrees on them.
    """
    overall = Limits(**config.limits.model_dump())
    models: list[Model] = []
    pools: list[Pool] = []
    workers: list[Worker] = []
    for settings in config.models:
        first_pool = len(pools)
        for pool in settings.pools_in_force:
            pools.append(
                _pool(pool, len(pools), settings.name, _workers(pool.listed_workers, len(workers)), config, overall, folder)
            )
            workers += pools[-1].workers
        own = tuple(pools[first_pool:])
        for pool, made in zip(settings.pools_in_force, own, strict=True):
            if pool.prefill is not None:
                trust = _trust_of_found(pool.prefill, _trust(pool, config, folder))
                pools.append(_stage(made, pool.prefill, len(pools), len(workers), trust))
                workers += pools[-1].workers
        models.append(
            Model(
                index=len(models),
                name=settings.name,
                aliases=settings.aliases,
                pools=own,
                stages=tuple(pools[first_pool + len(own) :]),
                image_tokens=settings.image_tokens,
                audio_tokens=settings.audio_tokens,
                output_quantile=settings.output_quantile if settings.output_budget == "learned" else None,
                tokenizer=None if settings.tokenizer is None else _tokenizer(settings.tokenizer),
            )
        )
    keys = tuple(
        Key(
            index=index,
            name=key.name,
            sha256=bytes.fromhex(key.sha256[0]),
            next_sha256=bytes.fromhex(key.sha256[1]) if len(key.sha256) > 1 else None,
            quota=Quota(**key.quota.model_dump()) if any(key.quota.model_dump().values()) else None,
            models=None if key.models is None else frozenset(key.models),
            priority=key.priority,
            weight=key.weight,
        )
        for index, key in enumerate(config.keys)
    )
    return assemble(
        tuple(models),
        keys,
        overall,
        _following(config),
        retries=Retries(**config.retries.model_dump()),
        health=HealthRules(**config.health.model_dump()),
        tls=listener_files(config.tls, folder),
        quota_sharing=(None if config.quotas.store is None else QuotaSharing(is_open=config.quotas.on_store_failure == "open")),
    )


def _tokenizer(settings: TokenizerConfig) -> TokenizerSource:
    return TokenizerSource(
        file=settings.file,
        tiktoken=settings.tiktoken,
        pattern=settings.pattern,
        is_worker=settings.from_worker,
        timeout_seconds=settings.timeout_seconds,
        most_bytes=settings.most_bytes,
    )


def _following(config: Config) -> Following:
    is_traced = config.tracing.otlp_endpoint is not None
    return Following(
        sample_ratio=config.tracing.sample_ratio if is_traced else None,
        chain_header=config.chains.header,
    )


def _pool(
    pool: PoolConfig, index: int, model: str, workers: tuple[Worker, ...], config: Config, overall: Limits, folder: Path
) -> Pool:
    key = pool.worker_key or config.worker_key
    inherited = {limit.name: getattr(overall, limit.name) for limit in fields(overall)}
    return Pool(
        index=index,
        model=model,
        name=pool.name,
        workers=workers,
        policy=pool.policy,
        max_total_tokens=pool.max_total_tokens,
        overflow_to=pool.overflow_to,
        borrows_from=pool.borrows_from,
        borrow_below_ratio=pool.borrow_below_ratio or 0.0,
        session_header=pool.session_header,
        asks_usage=pool.ask_usage,
        worker_key=key.get_secret_value() if key else None,
        health_path=pool.health_path,
        worker_tls=_trust_of_found(pool, _trust(pool, config, folder)),
        prefill=None if pool.prefill is None else stage_name(pool.name),
        prefill_seconds=60.0 if pool.prefill is None else pool.prefill.timeout_seconds,
        prefill_above_tokens=0 if pool.prefill is None else pool.prefill.min_prompt_tokens,
        finds_workers=pool.finds_workers is not None,
        limits=Limits(**inherited | pool.limits.model_dump(exclude_unset=True)),
        admission=_admission(config.admission, pool.admission),
        hedging=Hedging(**(pool.hedging or config.hedging).model_dump()),
    )


def _trust(pool: PoolConfig, config: Config, folder: Path) -> WorkerTls:
    return worker_tls(pool.worker_tls or config.worker_tls, folder)


def _trust_of_found(pool: PoolConfig | PrefillConfig, trust: WorkerTls) -> WorkerTls:
    """Found workers are known by their addresses: their certificates have the name that was looked up."""
    if pool.finds_workers is None or trust.server_name is not None or not trust.verifies:
        return trust
    return replace(trust, server_name=pool.finds_workers.certificate_name())


def _stage(of: Pool, stage: PrefillConfig, index: int, first_worker: int, trust: WorkerTls) -> Pool:
    """A pool with the limits and keys of the one that it computes for."""
    return replace(
        of,
        worker_tls=trust,
        index=index,
        name=stage_name(of.name),
        workers=_workers(stage.listed_workers, first_worker),
        policy=stage.policy,
        max_total_tokens=None,
        overflow_to=None,
        borrows_from=None,
        session_header=None,
        prefill=None,
        finds_workers=stage.finds_workers is not None,
    )


def _admission(overall: PoolAdmission, own: PoolAdmission) -> Admission:
    values = overall.model_dump() | own.model_dump(exclude_unset=True)
    return Admission(derives=values.pop("derive"), **values)


def _workers(settings: Sequence[WorkerConfig], first: int) -> tuple[Worker, ...]:
    return tuple(_worker(worker, index) for index, worker in enumerate(settings, start=first))


def _worker(settings: WorkerConfig, index: int) -> Worker:
    url = parse_worker_url(settings.url)
    return Worker(
        index=index,
        name=settings.label,
        url=url.url,
        host=url.host,
        port=url.port,
        base_path=url.base_path,
        authority=url.authority,
        data_parallel_ranks=settings.data_parallel_ranks or 1,
    )


def gpu_source(pool: PoolConfig, worker: str, host: str) -> DcgmSource | None:
    """Where the GPUs of this worker of the pool are told of; ``None`` if that is not configured."""
    own = next((each.dcgm for each in pool.listed_workers if each.label == worker), None)
    dcgm = own or pool.dcgm
    return None if dcgm is None else dcgm.of(worker, host)


def gpu_sources(config: Config, topology: Topology) -> dict[str, DcgmSource]:
    """The same of all workers of a topology, by their names; of those for which it is configured."""
    pools = {(model.name, pool.name): pool for model in config.models for pool in model.pools_in_force}
    return {
        worker.name: source
        for pool in topology.pools
        if (settings := pools.get((pool.model, pool.name))) is not None
        for worker in pool.workers
        if (source := gpu_source(settings, worker.name, worker.host)) is not None
    }
