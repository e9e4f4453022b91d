"""Define the rungs: what each one caches, how workers switch between them, and the climb that measures them."""
