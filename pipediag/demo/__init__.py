"""The script behind ``pipediag demo``."""
