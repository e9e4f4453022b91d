"""What differs under pipediag today, and why: kept scripts by name, and invented ones. Both are to stay empty."""

KNOWN: dict[str, str] = {}
INVENTED = ""
