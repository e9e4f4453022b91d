"""Analyse a distributed job: one session of its ranks' (``merging``), cores that they share, and the rank that holds up
the others (``stragglers``), proven by trials (``trials``)."""
