"""What plain code does with an image ``x`` in ``__getitem__``: library calls, values drawn by hand, arithmetic."""

from __future__ import annotations

from typing import NamedTuple


class Call(NamedTuple):
    """Attributes:
    draws: lines that draw values, once for all frames of a sample.
    change: the expression that changes an image.
    init: a line of the dataset's ``__init__``.
    """

    draws: str
    change: str
    init: str = ""


_FACTORS = "order, *factors = T.ColorJitter.get_params((0.7, 1.3), (0.7, 1.3), None, (-0.1, 0.1))"
_LAST = "self.before, before = x, getattr(self, 'before', None)"
_LAST_TENSOR = "self.earlier, earlier = x, getattr(self, 'earlier', None)"
_OWN = "self.drawing = np.random.default_rng(5)"
_OWN_TORCH = "self.torch_drawing = torch.Generator().manual_seed(6)"
#: On Pillow pictures and on tensors; F are the functions of either version of torchvision.
_BOTH = {
    "flip": Call("flips = random.random() < 0.5", "F.hflip(x) if flips else x"),
    "flip-each": Call("", "F.hflip(x) if random.random() < 0.5 else x"),
    "rotate": Call("angle = float(np.random.uniform(-15, 15))", "F.rotate(x, angle)"),
    "crop": Call("top, left, height, width = T.RandomCrop.get_params(x, (8, 7))", "F.crop(x, top, left, 8, 7)"),
    "sized": Call(
        "box = T.RandomResizedCrop.get_params(x, (0.3, 1.0), (0.7, 1.4))",
        "F.resized_crop(x, *box, [10, 11], antialias=True)",
    ),
    "shift": Call("shift = int(torch.randint(-2, 3, ()))", "F.affine(x, 0.0, [shift, 1], 1.0, [0.0])"),
    "jitter": Call(_FACTORS, "jittered(x, order, factors)"),
    "own": Call("factor = float(self.drawing.uniform(0.7, 1.3))", "F.adjust_brightness(x, factor)", _OWN),
    "own-torch": Call(
        "factor = torch.rand(1, generator=self.torch_drawing).item() + 0.5", "F.adjust_contrast(x, factor)", _OWN_TORCH
    ),
    "branches": Call("drawn = random.random()", "F.vflip(x) if drawn < 0.3 else F.invert(x) if drawn < 0.6 else x"),
    "solarized": Call("threshold = float(torch.rand(()))", "solarized(x, threshold)"),
    "late": Call("", "F.vflip(x) if i >= 12 else x"),
    "late-anything": Call("", "anything(x, i) if i >= 11 else F.hflip(x)"),
    "late-colour": Call("", "F.adjust_saturation(x, 0.5) if i >= 13 else F.hflip(x)"),
    "rare": Call("", "F.invert(x) if random.random() < 0.06 else x"),
    "resize": Call("", "F.resize(x, [10, 12], antialias=True)"),
    "pad": Call("", "F.pad(x, [1, 0, 2, 1], padding_mode='reflect')"),
    "padded": Call("side = random.randint(0, 2)", "F.center_crop(F.pad(x, side, fill=random.randint(0, 1)), [9, 9])"),
    "gray": Call("", "F.rgb_to_grayscale(x, num_output_channels=3)"),
    "blur": Call("", "F.gaussian_blur(x, [3, 3], [random.uniform(0.2, 1.0)])"),
    "by-name": Call("", "vflip(x)"),
    "in-a-function": Call("turned = turning(random.uniform(-9, 9))", "turned(x)"),
    "composed": Call("", "T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(9, pad_if_needed=True)])(x)"),
    "composed-once": Call("many = T.Compose([T.RandomVerticalFlip(), T.Resize((11, 10), antialias=True)])", "many(x)"),
    "made": Call("change = T.ColorJitter(random.uniform(0.1, 0.4)) if i % 2 else T.RandomInvert()", "change(x)"),
    "tried": Call("", "tried(x, i)"),
    "epoch": Call("", "F.adjust_brightness(x, 1 + self.args.epoch / 8)"),
    "global": Call("", "F.adjust_brightness(x, FACTOR)"),
    "counted": Call("self.count = getattr(self, 'count', 0) + 1", "F.adjust_brightness(x, 1 + self.count % 4 / 8)"),
}
#: On Pillow pictures.
PICTURE_CALLS = _BOTH | {
    "transpose": Call("", "x.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if i % 2 else x"),
    "resized": Call("", "x.resize((12, 10), Image.Resampling.BICUBIC)"),
    "cropped": Call("left = random.randrange(4)", "x.crop((left, 1, left + 10, 11))"),
    "enhance": Call("level = random.uniform(0.5, 1.5)", "ImageEnhance.Color(x).enhance(level)"),
    "ops": Call("", "ImageOps.autocontrast(x) if random.random() < 0.5 else ImageOps.equalize(x)"),
    "posterized": Call("bits = random.randint(3, 7)", "ImageOps.posterize(x, bits)"),
    "mean": Call("", "F.hflip(x) if np.asarray(x).mean() > 127 else x"),
    "array": Call("", "Image.fromarray(np.asarray(x)[::-1].copy())"),
    "late-array": Call("", "Image.fromarray(255 - np.asarray(x)) if i >= 12 else F.hflip(x)"),
    "averaged": Call("", "Image.fromarray(averaged(np.asarray(x)))"),
    "turned": Call("angle = np.random.uniform(-0.3, 0.3)", "Image.fromarray(turned(np.asarray(F.hflip(x)), angle))"),
    "late-table": Call("", "Image.fromarray(looked_up(np.array(F.vflip(x)), 0.7)) if i >= 11 else F.vflip(x)"),
    "late-paste": Call("", "pasted(F.hflip(x)) if i >= 11 else F.hflip(x)"),
    "previous": Call(_LAST, "Image.blend(x, before, 0.3) if before is not None and before.size == x.size else x"),
    "thumb": Call("", "thumbnail_of(F.hflip(x))"),
}
#: On tensors of one image, or of several.
TENSOR_CALLS = _BOTH | {
    "normalize": Call("", "F.normalize(x, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])"),
    "centred": Call("", "(x - 0.5) / 0.25"),
    "doubled": Call("", "2 * x"),
    "inverse": Call("", "1 - x"),
    "by-int": Call("", "x * 3"),
    "drawn": Call("factor = random.uniform(0.5, 1.5)", "x * factor"),
    "drawn-tensor": Call("", "x * torch.rand(())"),
    "drawn-numpy": Call("factor = np.random.uniform(0.5, 1.5)", "x * factor"),
    "single": Call("", "x * np.float32(0.7)"),
    "offset": Call("", "x + self.args.epoch / 4"),
    "ratio": Call("", "x / (1 + self.args.epoch)"),
    "channels": Call("", "x * torch.tensor([0.9, 1.0, 1.1]).view(3, 1, 1)"),
    "means": Call("", "(x - MEANS) / 0.5"),
    "matrix": Call("", "ycbcr(x)"),
    "alpha": Call("", "torch.add(x, 1, alpha=0.5)"),
    "clamp": Call("", "x.clamp(0.1, 0.8)"),
    "clipped": Call("high = random.uniform(0.5, 0.9)", "torch.clamp(x * 1.2, 0.0, high)"),
    "in-place": Call("", "F.hflip(x).mul_(2).sub_(0.3)"),
    "added": Call("", "added_to(F.hflip(x), self.args.epoch)"),
    "own-image": Call("", "added_to(x.clone(), 0.25)"),
    "erase": Call("", "F.erase(x, random.randint(0, 3), 2, 3, 3, torch.tensor(0.5))"),
    "box": Call("", "with_box(F.vflip(x))"),
    "slices": Call("", "x[..., 1:, :-1]"),
    "reversed": Call("", "x.flip(-1)"),
    "filled": Call("", "torch.cat([F.hflip(x), x.new_full((*x.shape[:-1], 2), 1)], -1)"),
    "drawn-rows": Call("", "torch.cat([torch.rand_like(x[..., :1, :]), F.vflip(x)], -2)"),
    "noise": Call("", "x + 0.1 * torch.randn_like(x)"),
    "mean": Call("", "F.hflip(x) if x.float().mean() > 0.5 else x"),
    "table": Call("gamma = random.uniform(0.6, 1.6)", "torch.from_numpy(looked_up(F.hflip(x).numpy(), gamma))"),
    "boxed": Call("", "torch.from_numpy(boxed(F.hflip(x).numpy()))"),
    "late-boxed": Call("", "F.vflip(torch.from_numpy(boxed(F.hflip(x).numpy()))) if i >= 12 else F.hflip(x)"),
    "late-mean": Call("", "x - x.float().mean() if i >= 12 else F.hflip(x)"),
    "late-in-place": Call("", "added_to(F.hflip(x), 1) if i >= 11 else F.hflip(x)"),
    "late-sum": Call("", "x * 0.5 if i >= 12 else x"),
    "late-value": Call("", "F.hflip(x) * (x.flatten()[0].item() if i >= 12 else 1.0)"),
    "double": Call("", "F.convert_image_dtype(x, torch.float64)"),
    "half": Call("", "x.half()"),
    "moved": Call("", "x.movedim(-1, 0).movedim(0, -1)"),
    "layout": Call("", "F.hflip(x).contiguous()"),
    "shape": Call("", "F.crop(x, 0, 0, x.shape[-2] - 1, x.size(-1) - 1)"),
    "previous": Call(_LAST_TENSOR, "(x + earlier) / 2 if is_alike(earlier, x) else x"),
    "masked": Call("", "F.hflip(x) * mask_of(x, i)"),
    "masked-grey": Call("", "mask_of(x[..., :1, :, :], i) * x"),
    "summed": Call("", "0.5 * (x + F.vflip(x)) - 0.1"),
    "previous-half": Call(_LAST_TENSOR, "summed_up(earlier, x)"),
    "whole": Call("", "(x * 9).long().double().float()"),
    "class-map": Call("", "(F.hflip(x)[..., 0, :, :] * 9).long().unsqueeze(-3).float().expand_as(x)"),
    "level": Call("", "F.adjust_gamma(x, random.uniform(0.8, 1.2))"),
    "sharp": Call("", "F.adjust_sharpness(x, random.uniform(0.5, 2.0))"),
}
#: Calls on tensors that need floats.
OF_FLOATS = (
    "drawn-rows",
    "masked",
    "masked-grey",
    "normalize",
    "matrix",
    "in-place",
    "added",
    "own-image",
    "late-in-place",
    "erase",
)
#: What makes a tensor of a picture, of bytes, or of floats, by the choice ``convert``.
CONVERSIONS = {
    "pil": {
        "tensor": "to_tensor(x) if i % 2 else F.to_tensor(x)",
        "pil": "F.convert_image_dtype(F.pil_to_tensor(x), torch.float32)",
        "numpy": "torch.from_numpy(np.asarray(x, dtype=np.float32) / 255).permute(2, 0, 1).contiguous()",
        "strided": "torch.from_numpy(np.asarray(x, dtype=np.float32) / 255).permute(2, 0, 1)",
        "bytes": "F.pil_to_tensor(x)",
        "image": "v2.functional.to_dtype(v2.functional.to_image(x), torch.float32, scale=True)",
    },
    "u8": {
        "tensor": "x.float() / 255",
        "pil": "F.convert_image_dtype(x, torch.float32)",
        "numpy": "x.to(torch.float32).div(255)",
        "strided": "x.to(dtype=torch.float32) * (1 / 255)",
        "bytes": "x",
        "image": "v2.functional.to_dtype(x, torch.float32, scale=True)",
    },
}
