"""Write a batch's pixels, files and calls into one block of memory."""
