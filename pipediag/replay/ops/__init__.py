"""Know each operation: how a call is encoded, its kernels, how exact they are, and which launches it shares."""
