"""Repeat a packed batch on the device.

Begin with :mod:`.replay`, which launches; :mod:`.graphs` captures launches that repeat, and :mod:`.per_sample` applies
a transform to a batch that is on the device already. It imports ``pack`` and ``ops``, and knows no op by name.
"""
