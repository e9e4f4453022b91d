"""Run an unmodified script in an interpreter of its own, measure it there or train under a plan.

It may import everything below ``commands``. Begin with :mod:`.passes`, the parent: it starts :mod:`.child` through
:mod:`.entry` once or more, and hears of it by :mod:`.channel` and :mod:`.connections`. :mod:`.runner` is what
``pipediag run`` starts instead. :mod:`.hosting` brings either into the processes that a script or launcher starts.
"""
