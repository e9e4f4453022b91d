"""Analyse a distributed job: merge its ranks' sessions, compare their input, find the rank that holds it up."""
