"""Plain training scripts with a known cost planted in a known place: does pipediag find the place, and the cost?"""
