"""Act in a worker: make batches as the current rung asks, and say what each cost.

Begin with :mod:`.worker_side`, which travels to the workers; :mod:`.rungs` has a class for each rung that they serve.
A new rung is a class and its entry in ``SERVED``.
"""
