"""Does ``pipediag watch`` tell from outside whether a running script starves, how much, and at which line?"""
