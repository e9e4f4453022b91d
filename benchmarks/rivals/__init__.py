"""Give the same planted cases to other tools for input pipelines: who names the cause, the stage, the code?

Each tool gets the same text of each case's script and is used as its documentation says: on the unmodified script if
the tool can do that, otherwise with the edit that its documentation asks for:

``pipediag``        ``pipediag analyze train.py``, unmodified
``traceml``         ``traceml run train.py``, unmodified
``traceml-edited``  the same, after ``traceml.init()`` and with the loop's body under ``traceml.trace_step(model)``
``gpuprof``         ``python train.py``, with the loop under ``gpuprof.profile()``; it has no way to run a plain script

Run it with ``python -m benchmarks.rivals``.
"""
