"""Measure the gain of fetching, copying, transforming and encoding ahead of the loop, compared with other libraries."""
