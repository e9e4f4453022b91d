"""Decode JPEGs on the device.

Begin with :mod:`.undecoded`: what user code gets in place of a decoded image, for files that :mod:`.jpeg_header`
allows. :mod:`.decoding` fills in the pixels on the device, by :mod:`.nvjpeg`. It imports ``ops`` only.
"""
