"""The operations that a replay consists of.

Begin with :mod:`.operation`: all that is known of the ops of one name. A file of :mod:`.families` holds a family: the
encoders of calls, the kernels for a batch, the rules of exactness; :mod:`.table` finds these files. :mod:`.fuse` joins
ops for the fused kernels of :mod:`.triton`. It imports nothing of the engine, and no kernel waits for the device.
"""
