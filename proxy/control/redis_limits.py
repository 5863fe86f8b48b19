"""Limits per minute in a Redis, by the `limits` library: a sliding window that is counted in two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.control.leasing import STORE_SECONDS, StoreError

if TYPE_CHECKING:
    from limits import RateLimitItem

_PREFIX = "ridgeline"
_MOST_CONNECTIONS = 4


class RedisLimits:
    """A `LimitStore`. Keys in Redis begin with ``ridgeline``, and hold the name of the API key and its limit.

    Raises ImportError where the extra `quotas` is not installed.
    """

    def __init__(self, url: str) -> None:
        from limits.aio.storage import RedisStorage  # noqa: PLC0415 -- an extra, and slow to import
        from limits.aio.strategies import SlidingWindowCounterRateLimiter  # noqa: PLC0415
        from redis.asyncio import BlockingConnectionPool  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415

        self._faults = (RedisError, OSError, TimeoutError)
        self._pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MOST_CONNECTIONS,
            timeout=STORE_SECONDS,
            socket_timeout=STORE_SECONDS,
            socket_connect_timeout=STORE_SECONDS,
        )
        storage = RedisStorage(
            f"async+{url}",
            implementation="redispy",
            key_prefix=_PREFIX,
            connection_pool=self._pool,  # type: ignore[arg-type]  # documented so
        )
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    async def take(self, key: str, of: str, limit: int, cost: int) -> bool:
        """Whether so much could be taken from a key's limit, and was. Raises `StoreError`."""
        try:
            return await self._limiter.hit(_item(limit), of, key, cost=cost)
        except self._faults as error:
            raise StoreError(type(error).__name__) from error

    async def remaining(self, key: str, of: str, limit: int) -> int:
        """What is left of it now. Raises `StoreError`."""
        try:
            return (await self._limiter.get_window_stats(_item(limit), of, key)).remaining
        except self._faults as error:
            raise StoreError(type(error).__name__) from error

    async def close(self) -> None:
        """End connections."""
        await self._pool.aclose()


def _item(limit: int) -> RateLimitItem:
    from limits import RateLimitItemPerMinute  # noqa: PLC0415

    return RateLimitItemPerMinute(limit)
