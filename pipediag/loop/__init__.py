"""The running training loop: who trains, how far its epoch is, copies of its loader and shells around its parts."""
