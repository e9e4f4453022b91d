"""Says that it ran, by a file; imports nothing."""

with open("ran.txt", "w") as file:
    file.write("yes")
