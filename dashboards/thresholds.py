"""Every number that an alert, a dashboard's colour or the live page calls too much, in one place.

Where a number is an objective of a histogram it is one of that histogram's bounds, or the share below it could not be read.
"""

from __future__ import annotations

TTFT_GOOD_SECONDS = 0.5
"""A chat answers at once."""

TTFT_SECONDS = 1.0
"""Above, people doubt that anything happens; the objective of the alerts."""

TTFT_FAR_OFF_SECONDS = 1.5
"""What a customer service still bears."""

TPOT_SECONDS = 0.05
"""Slower than people read; the objective of the alerts."""

TPOT_JITTER_RATIO = 1.5
"""P99 over median of TPOT; above, it is felt as a stall."""

LENGTHS_APART_RATIO = 10.0
"""P99 over median of prompt lengths in one pool; above, a pool of their own for the long ones is worth a thought."""

ATTAINED_GOOD_RATIO = 0.8
"""Expected over measured; from here on a worker is at its limit."""

ATTAINED_RATIO = 0.5
"""Below, something is wrong."""

ATTAINED_FAR_OFF_RATIO = 0.3
"""Below, something is very wrong."""

KV_RESERVE_RATIO = 0.3
"""Share of the KV cache that is better kept free."""

OBJECTIVE_RATIO = 0.99
"""Share of requests whose TTFT and TPOT are to be within the objectives; what is left is the budget that alerts see burn."""

TPOT_NOTICED_SECONDS = 0.02
"""Faster than anybody follows: a spread below is no spike."""

STALL_RATIO = 20.0
"""Largest gap of a stream over its median gap; above, it has stood still."""
STALLED_STREAMS_RATIO = 0.05
"""Share of streams that may."""

QUEUE_SECONDS = 1.0
"""Waited in the gateway for a worker with room; above, it counts as queued."""
QUEUED_REQUESTS_RATIO = 0.05
"""Share of requests that may be."""
WAITING_RATIO = 0.25
"""Requests that wait in the workers of a pool over those that run there."""

KV_FULL_RATIO = 0.95
"""Share of the KV cache in use; above, running requests are thrown out and computed again."""

HIT_DROP_RATIO = 0.5
"""Hit share over its own average of the last hours."""
HIT_LEAST_RATIO = 0.1
"""An average below is no cache to lose."""
HIT_LEAST_TOKENS_PER_SECOND = 100.0
"""Prompt tokens below which a hit share says nothing."""
HIT_KNOWN_RATIO = 0.5
"""Share of prompt tokens whose hit is known; below, hit shares and TTFT limits are guesses."""

MISROUTES_RATIO = 0.05
"""Share of requests whose true length belongs into another pool."""

FLOOR_BEATEN_RATIO = 0.01
"""Share of a worker's streams that may be faster than its GPU can be: rounding and clocks, not facts."""

CLOCK_RATIO = 0.7
"""Clock of GPUs at work over what is usual for them; above, it may be full load that a power cap bounds."""
CLOCK_LIMITED_RATIO = 0.9
"""The same where the driver says that heat or a lack of power holds it down."""
CLOCK_FAR_OFF_RATIO = 0.6
"""Below, it is a warning whatever the driver says."""

OUTLIER_RATIO = 1.5
"""Mean TPOT of a worker over the lower quartile of its pool."""

ERRORS_RATIO = 0.01
"""Share of requests that fail without being at fault."""
ERRORS_FAR_OFF_RATIO = 0.05

SHED_RATIO = 0.05
"""Share of requests that are refused because nobody has room."""

RESTARTS_OF_A_WORKER = 3.0
"""In an hour: it does not come up, or falls over again and again."""

UNREAD_PER_SECOND = 0.1
"""Reads of a worker's metrics page that fail; a gateway makes one every five seconds."""

LOOP_LAG_SECONDS = 0.05
"""By so much every token may be late because of the gateway itself."""
CONTROL_LAG_SECONDS = 2.0
"""By so much figures, probes and the log are late."""
CPU_RATIO = 0.85
"""Processor time of a serving process over time: it uses one core and no more."""

SERIES = 50_000.0
"""What one gateway is to export at most."""
SERIES_RATIO = 0.8

LEAST_REQUESTS = 20.0
"""Below so many in a window, shares say nothing."""
LEAST_REQUESTS_FOR_P99 = 100.0
