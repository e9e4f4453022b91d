"""Stands first on the path of the script beside it: here torchvision cannot be imported."""

raise ImportError("torchvision is not installed here")
