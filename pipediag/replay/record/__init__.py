"""Run the user's transforms on images without pixels, and record the calls that they make."""
