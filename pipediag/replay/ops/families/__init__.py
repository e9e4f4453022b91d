"""Families of ops, a file each: to add an op, add a file that declares it (:mod:`..table`).

A file may declare ``OPERATIONS``, ``FUNCTIONALS`` and, for Pillow images, ``METHODS``, ``IMAGE_OPS`` and
``OF_PICTURES``. Kernels work on whole batches on a device, with one set of parameters for each sample.
"""
