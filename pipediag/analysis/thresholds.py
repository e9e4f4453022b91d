"""Every number a verdict depends on, with its reason."""

#: Below this share of the step, input cost is not worth a change: it is of the size of run-to-run noise on shared
#: machines, and of what changing the loader usually costs elsewhere.
GATE = 0.05
#: What a change has to bring at least, in steps a second: one that saves less than the gate of a step is not worth it.
WORTH = 1.0 / (1.0 - GATE)
#: Share of the step below which the instrument itself cannot tell costs apart, however often it measures: switching,
#: tagging and timing disturb a step by about this much (benchmarks/overhead.py).
RESOLUTION = 0.01
#: From this share on, the pipeline costs more than most optimisations of the model could win back.
SEVERE = 0.20
#: A second stage that costs at least this part of the largest one is named beside it: mending the first alone would
#: leave most of the wait in place.
CO_BOTTLENECK = 0.5
#: Workers are said to slow the training process, rather than to be late, when that accounts for this part of the
#: whole cost of the pipeline.
CONTENTION = 0.5
#: Part of their time that workers wait for a core from which on threads are in each other's way.
QUEUED = 0.05
#: How far a rung may be from where the workers' time has it, beyond its interval: on six recorded sessions the law held
#: to 5 %, and rungs are measured at other times than the baseline.
AGREE = 1.15
