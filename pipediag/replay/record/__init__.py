"""Record what the user's transforms do to a sample, on images without pixels.

Begin with :mod:`.recorder`, which runs a transform on recording images (:mod:`.images`, :mod:`.pictures`);
:mod:`.hooks` lets the libraries' functions write to their tapes (:mod:`.functional_calls`, :mod:`.tape`), and
:mod:`.answers` says what torch's functions give. :mod:`.scouting` finds what can be
recorded, :mod:`.twins` records beside an execution, :mod:`.batches` collates. It imports ``ops`` and ``decode``;
``scouting`` imports ``plan`` and ``pack`` too.
"""
