"""A module of the user's own, beside the script."""

import numpy as np
from PIL import Image

STRENGTH = 0
LEVEL = 1


def load(path):
    if path.endswith(".npz"):
        return np.load(path)["x"]
    return Image.open(path).convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
