"""Replay a worker's image transforms on a device: the same random draws, the same pixels.

A library of its own: of pipediag it imports only what reads user code (``usercode``), the patches, and plain data
(``session``). Begin with :mod:`.plan`, which says what moves. A worker records a sample (``record``) and packs the
batch (``pack``); the device repeats it (``run``) by operations (``ops``), with JPEGs decoded there if allowed
(``decode``). ``certify`` proves that the pixels are equal.
"""
