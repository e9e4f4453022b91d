"""Find the user's dataset, its transforms and their source locations; take them apart and call them again.

It may import ``session`` and what is below. Begin with :mod:`.transform_slots`, the places that hold a transform.
:mod:`.spying` records the calls there, :mod:`.dissect` takes the sample apart by them, :mod:`.chain` each transform.
:mod:`.places` and the modules that use it name lines of code; :mod:`.tree` and :mod:`.paths` walk batches and samples.
"""
