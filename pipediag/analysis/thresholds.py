"""Define every number that a verdict depends on, with its reason."""

#: Below this share of the step, input cost is not worth a change: run-to-run noise on shared machines is as large, and
#: so is the usual cost that a change of the loader causes elsewhere.
GATE = 0.05
#: Least worthwhile speedup in steps per second: a change that saves less than the gate of a step is not worth it.
WORTH = 1.0 / (1.0 - GATE)
#: Part of its cost by which the input of another run of the same script may cost more or less: half of the 95 %
#: interval that is added to the run's own. Caches, memory and clocks differ from run to run. In native turns of
#: 5 s, ln(cached / plain) has a standard deviation of 0.21 of the share (quiet cells that lose more than a tenth, in
#: benchmarks/results/word-cpu-slots-16c.json); analyses are longer, and their own interval is added.
RUN_TO_RUN = 0.25
#: Share of the step below which the instrument cannot separate costs, however often it measures: switching, tagging and
#: timing disturb a step by about this much (benchmarks/overhead.py).
RESOLUTION = 0.01
#: From this share of the step on, the pipeline costs more than most optimisations of the model could regain.
SEVERE = 0.20
#: A second stage that costs at least this fraction of the largest is named too: fixing only the first would leave most
#: of the wait.
CO_BOTTLENECK = 0.5
#: The verdict is contention, not late workers, if contention is at least this fraction of the pipeline's whole cost.
CONTENTION = 0.5
#: Share of their time that workers wait for a core above which threads compete for cores.
QUEUED = 0.05
#: Factor by which a rung may differ from the value that the workers' time predicts, beyond its interval: on six
#: recorded sessions the law held to 5 %, and rungs are measured at other times than the baseline.
AGREE = 1.15
#: A sample is slow if it takes at least this many times the median.
SLOW = 3.0
