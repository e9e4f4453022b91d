"""Look at batches, samples and the model outside the timed windows.

A probe is a turn of the loop (:data:`pipediag.ladder.loop_side.Turn`), or runs in a worker beside a batch; it restores
what it touches, and returns plain facts of :mod:`pipediag.session`. Begin with :mod:`.modelside` for the loop's side,
with :mod:`.inspection` for the workers'.
"""
