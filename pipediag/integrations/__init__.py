"""Callbacks that log what data costs a training to the trainer's own logger; see :func:`pipediag.monitor`.

Each module imports its framework, which must be installed. They may import ``monitoring`` and what is below it.
"""
