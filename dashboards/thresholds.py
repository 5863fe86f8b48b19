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

ERRORS_RATIO = 0.01
"""Share of requests that fail without being at fault."""

MISROUTES_RATIO = 0.05
"""Share of requests whose true length belongs into another pool."""

LENGTHS_APART_RATIO = 10.0
"""P99 over median of prompt lengths in one pool; above, a pool of their own for the long ones is worth a thought."""

LOOP_LAG_SECONDS = 0.05
"""By so much every token may be late because of the gateway itself."""

CONTROL_LAG_SECONDS = 2.0
"""By so much figures, probes and the log are late."""

ATTAINED_GOOD_RATIO = 0.8
"""Expected over measured; from here on a worker is at its limit."""

ATTAINED_RATIO = 0.5
"""Below, something is wrong."""

ATTAINED_FAR_OFF_RATIO = 0.3
"""Below, something is very wrong."""

KV_RESERVE_RATIO = 0.3
"""Share of the KV cache that is better kept free."""
