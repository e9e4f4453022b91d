"""Pack a batch in a worker: images, ops and other tensors in one block of memory for the device.

Begin with :mod:`.packing`. It merges the samples' ops into launches (:mod:`.program`), and writes into shared memory
(:mod:`.ring`); what arrives is a :class:`.packed_batch.Packed`. It imports ``record``, ``ops`` and ``decode``, and
knows no op by name.
"""
