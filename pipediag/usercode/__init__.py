"""The user's dataset, its transforms and their places in the code: found, taken apart, called again."""
