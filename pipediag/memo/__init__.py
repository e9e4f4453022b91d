"""Remember the results of pure library calls by their inputs: the user's own code runs every time.

It may import ``usercode``, ``measure`` and what is below. Begin with :mod:`.loader`, which is ``pipediag.cache``, and
:mod:`.memo`, which answers a call. :mod:`.calls` and :mod:`.pictures` say which calls, :mod:`.keys` what identifies an
input, :mod:`.values` how a result becomes bytes; :mod:`.arena` is the one file that all processes of a run share.
"""
