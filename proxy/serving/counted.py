"""The step before a worker is chosen, for the few requests whose pool depends on it: counting the prompt exactly."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic as clock

import msgspec

from proxy.serving.counting import count_at_worker
from proxy.serving.counting_process import Job
from proxy.serving.dispatch import Prepared
from proxy.upstream.attempts import Attempts
from proxy.wire.errors import ProxyError
from routing.estimate import UNLEARNED
from routing.estimate_exact import counted, depends_on_count, uncounted
from routing.topology import TokenizerSource
from telemetry.record import CountResult


@dataclass(slots=True, eq=False, repr=False)
class CountsFirst(Attempts):
    """The part of an exchange that counts. Its time is neither the worker's nor the gateway's own work: `count_seconds`."""

    def _begin(self, prepared: Prepared, since: float) -> None:
        """Choose a worker and send, at once or after counting."""
        source = prepared.model.tokenizer
        if source is None or not depends_on_count(prepared.model, prepared.demand):
            self._attempt(since)
            return
        now = clock()
        self.own_seconds += now - since
        self._task = self.state.loop.create_task(self._count(prepared, source, now))

    async def _count(self, prepared: Prepared, source: TokenizerSource, since: float) -> None:
        state, model, request = self.state, prepared.model, prepared.request
        try:
            if source.is_worker:
                is_up = state.loads.snapshot(is_retry=True).is_up
                result, tokens = await count_at_worker(model, source, request, is_up, state.worker_contexts)
            else:
                others = tuple(map(bytes, request.others))
                result, tokens = await state.counting.count(
                    Job(0, source, bytes(request.messages), others, bytes(request.prompt))
                )
            now = clock()
            if self.ended:
                return
            self._task = None
            self.count_result, self.count_seconds = result, now - since
            if tokens is None:
                demand = uncounted(prepared.demand)
            else:
                learned = state.loads.guidance.models.get(model.name)
                template = None if source.is_worker else (learned and learned.tokens) or UNLEARNED
                demand = counted(prepared.demand, tokens, template)
            # After a reload it is another value, or gone.
            self.prepared = msgspec.structs.replace(prepared, demand=demand, model=state.endpoints.model(model.name))
            self._attempt(now)
        except ProxyError as error:
            self.fail(error)
        except Exception:
            if not self.ended:
                self.count_result = CountResult.FAILED
                self.fail_unexpectedly()
