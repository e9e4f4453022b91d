"""Has the name of one of pipediag's modules; the script's must win."""

WHOSE = "the script's own errors"
