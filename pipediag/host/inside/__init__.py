"""Act inside the script's process: hook its imports and loaders, report to the parent, keep its streams and threads."""
