"""Shim for tools that still call setup.py; every fact about the package is in setup.cfg."""

from setuptools import setup

setup()
