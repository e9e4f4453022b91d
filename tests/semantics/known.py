"""What differs under pipediag today, and why: kept scripts by name, and invented ones. Both are to become empty."""

STRIDES = "a tensor that is not stacked comes back contiguous, whatever its strides were"

KNOWN: dict[str, str] = {"unbatched_strides": STRIDES}
INVENTED = STRIDES
