"""Find the user's dataset, its transforms and their source locations; take them apart and call them again."""
