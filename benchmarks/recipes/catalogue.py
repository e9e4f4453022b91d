"""List the public scripts: where each comes from, what it needs, and its command on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BOTH = ("cpu", "gpu")


@dataclass(frozen=True)
class Place:
    """The folders of a recipe: ``data`` holds the data, ``repository`` the script's sources, ``work`` is its folder."""

    data: Path
    repository: Path
    work: Path
    gpu: bool
    workers: int

    def pick(self, gpu: str, cpu: str) -> list[str]:
        """Return the arguments for this machine."""
        return (gpu if self.gpu else cpu).split()


@dataclass(frozen=True)
class Source:
    """Files of a GitHub repository, at a commit or tag."""

    repository: str
    commit: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """One public training script and its setup.

    Attributes:
        data: the kinds of :mod:`.data` that the script reads.
        where: the machines on which it runs.
        needs: importable packages in addition to torch and torchvision.
        loader: True if it trains from a DataLoader in its own process.
        stages: the stages of its input: load, transform, collate.
        cwd: relative to the repository; a scratch folder if empty.
        links: paths in the working folder, and the data to which they point.
        source_links: the same in the repository, for scripts that search their own folder.
        environment: added to the script's environment; ``{data}`` and ``{repository}`` are filled in.
    """

    name: str
    source: Source
    script: str
    arguments: Callable[[Place], list[str]]
    data: tuple[str, ...]
    where: tuple[str, ...] = BOTH
    needs: tuple[str, ...] = ()
    loader: bool = True
    stages: tuple[str, ...] = ("load", "transform", "collate")
    cwd: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    source_links: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def repository(self) -> str:
        return self.source.repository


TIMM = Source("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d", ("train.py", "timm"))
VISION = Source(
    "pytorch/vision",
    "v0.21.0",
    ("references/classification", "references/segmentation", "references/detection", "references/similarity"),
)
EXAMPLES = Source(
    "pytorch/examples",
    "77f55b912142e11fcfdf5b530231fb9c52f181e8",
    ("imagenet", "mnist", "vae", "siamese_network", "super_resolution", "dcgan", "word_language_model/*.py"),
)
KUANGLIU = Source(
    "kuangliu/pytorch-cifar", "49b7aa97b0c12fe0d4054e670403a16b6b834ddd", ("main.py", "utils.py", "models")
)
WEIAICUNZAI = Source(
    "weiaicunzai/pytorch-cifar100",
    "11d8418f415b261e4ae3cb1ffe20d06ec95b98e4",
    ("train.py", "utils.py", "dataset.py", "conf", "models"),
)
SIMCLR = Source(
    "sthalles/SimCLR",
    "1848fc934ad844ae630e6c452300433fe99acfd9",
    ("run.py", "simclr.py", "utils.py", "data_aug", "models", "exceptions"),
)
YUNJEY = Source(
    "yunjey/pytorch-tutorial",
    "0500d3df5a2a8080ccfccbc00aca0eacc21818db",
    ("tutorials/02-intermediate/deep_residual_network",),
)
GAN = Source("eriklindernoren/PyTorch-GAN", "36d3c77e5ff20ebe0aeefd322326a134a279b93e", ("implementations/cyclegan",))
ACCELERATE = Source("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83", ("examples/cv_example.py",))
LIGHTNING = Source(
    "Lightning-AI/pytorch-lightning",
    "7f0c3436cd3f6ad3753125672024fc415cbcb414",
    ("examples/fabric/image_classifier/train_fabric.py", "examples/pytorch/domain_templates/imagenet.py"),
)
NANOGPT = Source(
    "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", ("train.py", "model.py", "configurator.py")
)
MINGPT = Source(
    "karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", ("mingpt", "projects/chargpt/chargpt.py")
)
PYG = Source("pyg-team/pytorch_geometric", "5c6461b2305ad068a6d61165b3c55852a11aaa41", ("examples/mutag_gin.py",))
SRCNN = Source(
    "yjn870/SRCNN-pytorch",
    "064dbaac09859f5fa1b35608ab90145e2d60828b",
    ("train.py", "datasets.py", "models.py", "utils.py"),
)
DINO = Source(
    "facebookresearch/dino",
    "7c446df5b9f45747937fb0d72314eb9f7b66930a",
    ("main_dino.py", "utils.py", "vision_transformer.py"),
)
DEEPLAB = Source(
    "VainF/DeepLabV3Plus-Pytorch",
    "4e1087de98bc49d55b9239ae92810ef7368660db",
    ("main.py", "datasets", "metrics", "network", "utils"),
)

#: A model with steps of about 100 ms on two cores.
_SMALL = "shufflenet_v2_x0_5"


def _classification(more: str, resnet: str = "resnet50") -> Callable[[Place], list[str]]:
    def arguments(at: Place) -> list[str]:
        sized = at.pick(
            f"--model {resnet} -b 256 --amp --print-freq 20",
            f"--model {_SMALL} -b 16 --device cpu --train-crop-size 128 --val-resize-size 144 --val-crop-size 128",
        )
        where = ["--data-path", f"{at.data}/images", "--output-dir", str(at.work), "-j", str(at.workers)]
        return [*where, *sized, *more.split()]

    return arguments


def _timm(source: str) -> Callable[[Place], list[str]]:
    def arguments(at: Place) -> list[str]:
        sized = at.pick(
            "--model resnet50 -b 256 --amp --aa rand-m9-mstd0.5",
            "--model mobilenetv3_small_050 -b 16 --device cpu --img-size 96 --aa rand-m9-mstd0.5",
        )
        return ["--data-dir", f"{at.data}/{source}", *sized, "-j", str(at.workers), "--output", str(at.work)]

    return arguments


def _segmentation(at: Place) -> list[str]:
    sized = at.pick("--model fcn_resnet50 -b 16 --amp", "--model lraspp_mobilenet_v3_large -b 2 --device cpu")
    rest = f"--dataset voc --lr 0.01 --epochs 30 -j {at.workers} --data-path {at.data}"
    return [*rest.split(), *sized, "--output-dir", str(at.work)]


def _detection(at: Place) -> list[str]:
    cpu = "--model ssdlite320_mobilenet_v3_large -b 4 --device cpu --data-augmentation ssdlite"
    sized = at.pick("--model fasterrcnn_resnet50_fpn -b 8 --amp --data-augmentation multiscale", cpu)
    rest = ["--data-path", f"{at.data}/coco", "-j", str(at.workers), "--aspect-ratio-group-factor", "3"]
    return [*rest, *sized, "--output-dir", str(at.work)]


def _imagenet(at: Place) -> list[str]:
    return [*at.pick("-a resnet18 -b 256", f"-a {_SMALL} -b 16"), "-j", str(at.workers), f"{at.data}/images"]


def _lightning(at: Place) -> list[str]:
    sized = at.pick(
        "--model.arch resnet18 --model.batch_size 256 --trainer.precision 16-mixed",
        f"--model.arch {_SMALL} --model.batch_size 16",
    )
    return ["fit", f"--model.data_path={at.data}/images", f"--model.workers={at.workers}", *sized]


def _dino(at: Place) -> list[str]:
    rest = f"--arch vit_small --batch_size_per_gpu 64 --num_workers {at.workers} --output_dir {at.work}"
    return [*rest.split(), "--data_path", f"{at.data}/images/train"]


def _deeplab(at: Place) -> list[str]:
    return ["--data_root", str(at.data), "--batch_size", "16", "--val_interval", "1000000"]


def _cyclegan(at: Place) -> list[str]:
    small = "--img_height 64 --img_width 64 --n_residual_blocks 1 --batch_size 1"
    return ["--dataset_name", "cyclegan", f"--n_cpu={at.workers}", *at.pick("--batch_size 4", small)]


def _nanogpt(at: Place) -> list[str]:
    small = "--device=cpu --batch_size=4 --block_size=64 --n_layer=2 --n_head=2 --n_embd=64"
    large = "--batch_size=16 --block_size=512 --n_layer=6 --n_head=6 --n_embd=384"
    rest = f"--dataset={at.data}/text --out_dir={at.work} --compile=False --eval_iters=2 --eval_interval=500"
    return [*rest.split(), "--gradient_accumulation_steps=1", *at.pick(large, small)]


def _mingpt(at: Place) -> list[str]:
    kind = "gpt-micro" if at.gpu else "gpt-nano"
    return [f"--trainer.num_workers={at.workers}", f"--model.model_type={kind}", "--trainer.batch_size=64"]


def _srcnn(at: Place) -> list[str]:
    files = ["--train-file", f"{at.data}/h5/train.h5", "--eval-file", f"{at.data}/h5/eval.h5", "--outputs-dir", "."]
    return [*files, "--num-workers", str(at.workers), *at.pick("--batch-size 64", "--batch-size 16")]


RECIPES = (
    Recipe("timm", TIMM, "train.py", _timm("images"), ("images",)),
    Recipe("timm-tar", TIMM, "train.py", _timm("images.tar"), ("tar",)),
    Recipe("vision-classification", VISION, "references/classification/train.py", _classification(""), ("images",)),
    Recipe(
        "vision-classification-v2",
        VISION,
        "references/classification/train.py",
        _classification("--backend tensor --use-v2"),
        ("images",),
    ),
    Recipe(
        "vision-classification-wide",
        VISION,
        "references/classification/train.py",
        _classification("--auto-augment ta_wide --random-erase 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0"),
        ("images",),
        note="MixUp and CutMix run in the collate function",
    ),
    Recipe("vision-segmentation", VISION, "references/segmentation/train.py", _segmentation, ("voc",)),
    Recipe("vision-detection", VISION, "references/detection/train.py", _detection, ("coco",), needs=("pycocotools",)),
    Recipe(
        "vision-similarity",
        VISION,
        "references/similarity/train.py",
        lambda at: [f"--dataset-dir={at.data}", f"-j{at.workers}", "-p8", "-k8"],
        ("mnist",),
        where=("gpu",),
        note="a ResNet-50; a step takes seconds on a CPU",
    ),
    Recipe("examples-imagenet", EXAMPLES, "imagenet/main.py", _imagenet, ("images",)),
    Recipe(
        "examples-mnist",
        EXAMPLES,
        "mnist/main.py",
        lambda at: ["--epochs", "100"],
        ("mnist",),
        note="no workers on a CPU, one on a GPU",
    ),
    Recipe("examples-vae", EXAMPLES, "vae/main.py", lambda at: ["--epochs", "100"], ("mnist",)),
    Recipe(
        "examples-siamese",
        EXAMPLES,
        "siamese_network/main.py",
        lambda at: at.pick("--batch-size 64", "--batch-size 8"),
        ("mnist",),
        stages=("load", "collate"),
    ),
    Recipe(
        "examples-super-resolution",
        EXAMPLES,
        "super_resolution/main.py",
        lambda at: (
            f"--upscale_factor 3 --nEpochs 400 --threads {at.workers}".split()
            + at.pick("--accel --batchSize 16", "--batchSize 4")
        ),
        ("bsds",),
        needs=("six",),
        links={"dataset": "bsds"},
        note="short epochs: 12 batches on a GPU, 50 on a CPU",
    ),
    Recipe(
        "examples-dcgan",
        EXAMPLES,
        "dcgan/main.py",
        lambda at: (
            f"--dataset folder --dataroot {at.data}/images/train --outf . --workers {at.workers}".split()
            + at.pick("--accel --batchSize 128", "--batchSize 8 --ngf 16 --ndf 16")
        ),
        ("images",),
    ),
    Recipe(
        "examples-word-language-model",
        EXAMPLES,
        "word_language_model/main.py",
        lambda at: ["--data", f"{at.data}/text", *at.pick("--accel", "--emsize 64 --nhid 64")],
        ("text",),
        loader=False,
        stages=(),
        note="batches are slices of one tensor; without an optimizer",
    ),
    Recipe(
        "cifar-kuangliu",
        KUANGLIU,
        "main.py",
        lambda at: [],
        ("cifar",),
        where=("gpu",),
        links={"data": "."},
        note="batch 128 and 2 workers are fixed in the script; a step takes seconds on a CPU",
    ),
    Recipe(
        "cifar100-weiaicunzai",
        WEIAICUNZAI,
        "train.py",
        lambda at: at.pick("-net resnet18 -gpu -b 128", "-net squeezenet -b 8"),
        ("cifar",),
        needs=("tensorboard",),
        links={"data": "."},
    ),
    Recipe(
        "simclr",
        SIMCLR,
        "run.py",
        lambda at: (
            f"-data {at.data} -dataset-name cifar10 -j {at.workers}".split()
            + at.pick("-b 512 --fp16-precision", "-b 32 -a resnet18 --disable-cuda")
        ),
        ("cifar",),
        needs=("tensorboard",),
    ),
    Recipe(
        "resnet-yunjey",
        YUNJEY,
        "tutorials/02-intermediate/deep_residual_network/main.py",
        lambda at: [],
        ("cifar",),
        note="no workers; batch 100",
    ),
    Recipe(
        "cyclegan",
        GAN,
        "implementations/cyclegan/cyclegan.py",
        _cyclegan,
        ("cyclegan",),
        note="three optimizers a batch",
    ),
    Recipe(
        "accelerate-cv",
        ACCELERATE,
        "examples/cv_example.py",
        lambda at: ["--data_dir", f"{at.data}/pets", *at.pick("--mixed_precision fp16", "--cpu")],
        ("pets", "hub"),
        needs=("accelerate", "timm"),
        where=("gpu",),
        environment={"HF_HOME": "{data}/hub/huggingface", "HF_HUB_OFFLINE": "1"},
        note="frozen ResNet-50-D, batch 64 and 4 workers are fixed; a step takes seconds on a CPU",
    ),
    Recipe(
        "fabric-mnist",
        LIGHTNING,
        "examples/fabric/image_classifier/train_fabric.py",
        lambda at: ["--epochs", "100"],
        ("mnist",),
        needs=("lightning", "torchmetrics"),
        source_links={"Datasets": "."},
        note="no workers",
    ),
    Recipe(
        "lightning-imagenet",
        LIGHTNING,
        "examples/pytorch/domain_templates/imagenet.py",
        _lightning,
        ("images",),
        needs=("lightning", "torchmetrics", "jsonargparse"),
    ),
    Recipe(
        "nanogpt",
        NANOGPT,
        "train.py",
        _nanogpt,
        ("text",),
        cwd=".",
        loader=False,
        stages=(),
        note="batches by hand from a memory map",
    ),
    Recipe(
        "mingpt",
        MINGPT,
        "projects/chargpt/chargpt.py",
        _mingpt,
        ("text",),
        stages=("load", "collate"),
        links={"input.txt": "text/input.txt"},
        environment={"PYTHONPATH": "{repository}"},
        note="an endless sampler, next() by hand",
    ),
    Recipe(
        "pyg-gin",
        PYG,
        "examples/mutag_gin.py",
        lambda at: ["--epochs", "1000"],
        ("graphs",),
        needs=("torch_geometric",),
        stages=("load", "collate"),
        source_links={"data": "tu"},
        note="graphs in memory, no workers",
    ),
    Recipe(
        "srcnn",
        SRCNN,
        "train.py",
        _srcnn,
        ("h5",),
        needs=("h5py", "tqdm"),
        stages=("load", "collate"),
        note="opens the HDF5 file twice a sample",
    ),
    Recipe(
        "dino",
        DINO,
        "main_dino.py",
        _dino,
        ("images", "weights"),
        where=("gpu",),
        environment={"TORCH_HOME": "{data}/hub/torch", "MASTER_PORT": "29511"},
        note="ten views an image",
    ),
    Recipe(
        "deeplab",
        DEEPLAB,
        "main.py",
        _deeplab,
        ("voc", "weights"),
        where=("gpu",),
        needs=("matplotlib", "sklearn", "tqdm"),
        environment={"TORCH_HOME": "{data}/hub/torch"},
        note="two workers are fixed in the script; its transforms take a picture and its mask",
    ),
)
