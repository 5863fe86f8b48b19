"""Bounds of the histograms. Fine where a median has to be told from a P99, few where each costs a series per worker."""

# Ratio of 1.25 and less from 4 to 200 ms, so that a P99 of 1.5 times the median can be seen; 50 ms is an objective.
TOKEN_GAP_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.003),
    *(0.004, 0.005, 0.00625, 0.0075, 0.009, 0.011, 0.0135, 0.0165, 0.02),
    *(0.025, 0.03, 0.0375, 0.045, 0.05, 0.06, 0.07, 0.085, 0.1, 0.125, 0.15, 0.175, 0.2),
    *(0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0, 900.0),
)
# Ratio of 1.5 and less from 20 ms to 30 s; objectives are set at bounds, so the round ones are all there.
FIRST_TOKEN_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01),
    *(0.02, 0.03, 0.045, 0.067, 0.1, 0.14, 0.19, 0.25, 0.35, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 2.5, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0),
)
E2E_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
WAIT_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)
OVERHEAD_BOUNDS = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.025, 0.1, 1.0)
LENGTH_BOUNDS = tuple(float(2**power) for power in range(6, 21))  # 64 .. 1,048,576
STALL_BOUNDS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
ESTIMATE_BOUNDS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
ATTAINED_BOUNDS = (0.1, 0.3, 0.5, 0.65, 0.8, 0.95, 1.1, 1.5)
WORKER_FIRST_TOKEN_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WORKER_TPOT_BOUNDS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
