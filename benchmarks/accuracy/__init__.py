"""Plain training scripts with a planted cost: does pipediag find where it is and how large it is?"""
