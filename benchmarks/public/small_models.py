"""Small networks in the place of scripts' large ones, with the same inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

#: Positions of SSD300's default boxes: the side of each map of features, and its boxes a position.
_SSD = ((38, 4), (19, 6), (10, 6), (5, 6), (3, 4), (1, 4))


class Detector(nn.Module):
    """Stands for SSD300: the same default boxes, from one narrow stem.

    ``priors`` makes the default boxes of the network that it stands for.
    """

    def __init__(self, n_classes: int, priors: Any) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1)
        )
        self.heads = nn.ModuleList(nn.Conv2d(16, boxes * (4 + n_classes), 1) for _, boxes in _SSD)
        self.priors_cxcy = priors(self)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.stem(image)
        found = []
        for (side, _), head in zip(_SSD, self.heads, strict=True):
            pooled = nn.functional.adaptive_avg_pool2d(features, side)
            found.append(head(pooled).permute(0, 2, 3, 1).reshape(len(image), -1, 4 + self.n_classes))
        whole = torch.cat(found, 1)
        return whole[..., :4], whole[..., 4:]


class Perception(nn.Module):
    """Stands for the features of VGG-16 in a perceptual loss."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1))


class Segmenter(nn.Module):
    """Stands for U-Net: logits of the input's size, from features at a quarter of it."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.n_channels, self.n_classes, self.bilinear = inputs, classes, True
        self.net = nn.Sequential(
            nn.Conv2d(inputs, 16, 3, 4, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, classes, 1)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(self.net(image), image.shape[-2:], mode="bilinear")


class Embedding(nn.Module):
    """Stands for a ResNet trunk that returns ``(embeddings, prototypes' scores)`` for a list of crops of two sizes."""

    def __init__(self, size: int, prototypes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 7, 4, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
        )
        self.projection = nn.Linear(32, size)
        self.prototypes = nn.Linear(size, prototypes, bias=False)

    def forward(self, crops: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = torch.cat([self.trunk(crop).mean((2, 3)) for crop in crops])
        embedded = nn.functional.normalize(self.projection(pooled), dim=1)
        return embedded, self.prototypes(embedded)


class Speaker(nn.Module):
    """Stands for the network of a speaker's voice: mel bands, and two layers over them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        import torchaudio

        self.bands = torchaudio.transforms.MelSpectrogram(16000, n_fft=512, win_length=400, hop_length=160, n_mels=40)
        self.net = nn.Sequential(nn.Conv1d(40, 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU())
        self.out = nn.Linear(32, size)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            bands = (self.bands(waves) + 1e-6).log()
        return self.out(self.net(bands).mean(-1))


class Critics(nn.Module):
    """Stands for a set of discriminators of a vocoder: one, with its features, for the real and the made wave."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 8, 15, 4), nn.ReLU(), nn.Conv1d(8, 8, 15, 4), nn.ReLU())
        self.out = nn.Conv1d(8, 1, 3)

    def forward(self, real: torch.Tensor, made: torch.Tensor) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        features = [self.net(wave) for wave in (real, made)]
        scores = [self.out(found).flatten(1) for found in features]
        return [scores[0]], [scores[1]], [[features[0]]], [[features[1]]]


class Bands(nn.Module):
    """Stands for an image network over one plane of mel bands."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.out = nn.Linear(32, classes)

    def forward(self, bands: torch.Tensor) -> torch.Tensor:
        return self.out(self.net(bands).mean((2, 3)))
