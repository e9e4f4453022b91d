"""Work on several CUDA streams: prepare batches ahead of the loop, run stages and branches beside it.

It may import ``replay``, ``loop`` and what is below. Begin with :mod:`.executor`, which takes one
epoch's batches from a :mod:`.feed` to the loop; :mod:`.to_device` is the feed of the remedy. :mod:`.pipeline` is
``StagePipeline``, each :mod:`.stage` of it perhaps a CUDA :mod:`.graph`; :mod:`.branches` is ``fork_join``.
"""
