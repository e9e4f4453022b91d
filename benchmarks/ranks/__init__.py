"""Jobs of several ranks, one of which may hold the others: is it named, and is no rank named where none does?"""
