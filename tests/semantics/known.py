"""What differs under pipediag today, and why: kept scripts by name, and invented ones. Both are to become empty."""

KNOWN: dict[str, str] = {}
INVENTED = "calls of user code, and lifetimes of datasets"
