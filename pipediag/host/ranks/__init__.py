"""Host the processes of a distributed job: find them, rewrite their commands, follow each, report them together."""
