"""Prove that a replay gives the CPU's pixels and the user's own draws, on the user's own samples.

Begin with :mod:`.certifying`; :mod:`.samples` makes samples both ways, :mod:`.differences` says how far apart pixels
are, :mod:`.pictures` shows some. It imports all other parts of the engine.
"""
