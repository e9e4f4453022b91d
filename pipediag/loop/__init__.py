"""Enter the training loop: its iterators, its loader's parts, and what training changes.

It imports ``measure``, ``usercode`` and what is below them, and knows no rungs. Begin with :mod:`.iterators` (how a
loader's iterator is replaced), :mod:`.training` (which loader trains) and :mod:`.wrappers` (what stands in for the
dataset in a worker).
"""
