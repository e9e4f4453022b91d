"""The rungs: what each one caches, the live switch inside the workers, and the loop that climbs them."""
