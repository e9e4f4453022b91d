"""The public scripts, the best first: where each comes from, what it reads, and how it was made to run here.

Every script keeps its own data set, transforms, collate function, loader and loop. ``patches`` changes what does not
run without a GPU, offline or with today's libraries, constants that the script has no option for, and the model where
it is too large for two cores.
"""

from __future__ import annotations

from . import measurements, pictures, sounds_and_words

_ORDER = (
    "yolov5",
    "swav",
    "voxceleb",
    "transformers-pictures",
    "nested-unet",
    "video-3d-resnet",
    "ssd-tutorial",
    "pointnet",
    "unet3d",
    "monodepth2",
    "text-recognition",
    "mae",
    "cgcnn",
    "factorization",
    "monai-unet",
    "unet",
    "clip",
    "pose-resnet",
    "hifi-gan",
    "speech-commands",
    "transformers-text",
    "srgan",
    "informer",
    "bert",
    "diffusion",
)

_KNOWN = {script.name: script for script in (*pictures.SCRIPTS, *sounds_and_words.SCRIPTS, *measurements.SCRIPTS)}
SCRIPTS = tuple(_KNOWN[name] for name in _ORDER)
