"""Scripts that learn from pictures and videos."""

from __future__ import annotations

from ...recipes.catalogue import Place, Source
from ..kinds import Edit, Patch, Script
from .common import HF, HF_COMMIT, SMALL, transformers

#: The trainer as the README of denoising-diffusion-pytorch uses it.
DIFFUSE = """import sys

from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

model = Unet(dim=8, dim_mults=(1, 2, 2), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=32, timesteps=100, sampling_timesteps=10)
trainer = Trainer(
    diffusion,
    sys.argv[1],
    train_batch_size=16,
    train_num_steps=100000,
    gradient_accumulate_every=1,
    save_and_sample_every=100000,
    num_fid_samples=8,
    calculate_fid=False,
)
trainer.train()
"""


def _nested_unet(at: Place) -> list[str]:
    sized = "--arch NestedUNet --input_w 96 --input_h 96 -b 8"
    return [*sized.split(), "--num_workers", str(at.workers), "--epochs", "100"]


def _yolo(at: Place) -> list[str]:
    where = ["--data", f"{at.data}/yolo/data.yaml", "--project", str(at.work), "--workers", str(at.workers)]
    sized = (
        "--cfg models/yolov5n.yaml --img 160 --batch-size 8 --device cpu --epochs 100 --noval --noplots --noautoanchor"
    )
    return [*where, "--weights", "", *sized.split()]


def _video(at: Place) -> list[str]:
    data = f"{at.data}/clips"
    where = f"--video_path {data}/jpg --annotation_path {data}/annotation.json --result_path {at.work}/results"
    sized = "--dataset kinetics --model resnet --model_depth 10 --n_classes 10 --batch_size 4 --sample_size 56"
    rest = f"--no_val --no_cuda --n_threads {at.workers} --sample_duration 16 --resnet_widen_factor 0.25"
    return [*where.split(), *sized.split(), *rest.split()]


def _mae(at: Place) -> list[str]:
    where = ["--data_path", f"{at.data}/images", "--output_dir", str(at.work), "--log_dir", str(at.work)]
    sized = "--model mae_small --batch_size 16 --input_size 224 --device cpu --epochs 100"
    return [*where, *sized.split(), "--num_workers", str(at.workers)]


def _swav(at: Place) -> list[str]:
    crops = "--nmb_crops 2 6 --size_crops 224 96 --min_scale_crops 0.14 0.05 --max_scale_crops 1. 0.14"
    sized = (
        "--batch_size 8 --use_fp16 false --nmb_prototypes 100 --feat_dim 64 --epochs 100 --sync_bn none --arch small"
    )
    return ["--data_path", f"{at.data}/images/train", *crops.split(), *sized.split(), "--workers", str(at.workers)]


def _monodepth(at: Place) -> list[str]:
    sized = "--num_layers 18 --weights_init scratch --height 64 --width 192 --batch_size 4 --no_cuda --scales 0"
    where = ["--data_path", f"{at.data}/drives/kitti", "--log_dir", f"{at.work}/logs"]
    return [*where, *sized.split(), "--num_workers", str(at.workers)]


def _words(at: Place) -> list[str]:
    data = f"{at.data}/words"
    sized = "--Transformation None --FeatureExtraction VGG --SequenceModeling None --Prediction CTC"
    rest = "--output_channel 64 --hidden_size 32 --batch_size 64 --workers 1 --rgb --PAD"
    return ["--train_data", f"{data}/train", "--valid_data", f"{data}/valid", *sized.split(), *rest.split()]


def _pose(at: Place) -> list[str]:
    return ["--cfg", f"{at.repository}/experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml", "--frequent", "20"]


SCRIPTS = (
    Script(
        "nested-unet",
        Source(
            "4uiiurz1/pytorch-nested-unet",
            "557ea02f0b5d45ec171aae2282d2cd21562a633e",
            ("train.py", "archs.py", "dataset.py", "losses.py", "metrics.py", "utils.py"),
        ),
        "train.py",
        _nested_unet,
        ("nuclei",),
        needs=("albumentations", "pandas", "sklearn"),
        links={"inputs": "nuclei"},
        kind="segmentation, albumentations",
        patches=(
            Patch(
                "train.py", "from albumentations.augmentations import transforms", "import albumentations as transforms"
            ),
            Patch("train.py", "transforms.Flip()", "transforms.HorizontalFlip()"),
            Patch("train.py", "transforms.RandomBrightness()", "transforms.RandomBrightnessContrast(contrast_limit=0)"),
            Patch("train.py", "transforms.RandomContrast()", "transforms.RandomBrightnessContrast(brightness_limit=0)"),
            Patch("archs.py", "[32, 64, 128, 256, 512]", "[8, 16, 16, 16, 16]", 2),
        ),
        small="8 to 16 channels",
    ),
    Script(
        "yolov5",
        Source(
            "ultralytics/yolov5",
            "5081342f04fb287fc2e5f2b5a4e06752b7937b1c",
            ("train.py", "val.py", "export.py", "models", "utils", "data", "hubconf.py", "benchmarks.py"),
        ),
        "train.py",
        _yolo,
        ("yolo",),
        needs=("cv2", "ultralytics", "pandas"),
        kind="detection with mosaics, cv2",
        patches=(Patch("utils/general.py", """check_font("Arial.ttf" if""", """dict(name="Arial.ttf" if"""),),
        small="YOLOv5n at 160 pixels",
        edits=(Edit(r"(?i)\b(cache|keep|precompute|decode|load|loading)\b", options={"--cache": "ram"}),),
        cwd=".",
    ),
    Script(
        "video-3d-resnet",
        Source(
            "kenshohara/3D-ResNets-PyTorch",
            "540a0ea1abaee379fa3651d4d5afbd2d667a1f49",
            (
                "main.py",
                "dataset.py",
                "inference.py",
                "mean.py",
                "model.py",
                "opts.py",
                "spatial_transforms.py",
                "temporal_transforms.py",
                "training.py",
                "utils.py",
                "validation.py",
                "datasets",
                "models",
            ),
        ),
        "main.py",
        _video,
        ("clips",),
        needs=("h5py",),
        kind="video, frames as JPEGs",
        patches=(Patch("spatial_transforms.py", "transforms.Scale", "transforms.Resize"),),
        small="a quarter of ResNet-10's width, 16 frames of 56 pixels",
    ),
    Script(
        "monodepth2",
        Source(
            "nianticlabs/monodepth2",
            "b676244e5a1ca55564eb5d16ab521a48f823af31",
            ("train.py", "trainer.py", "options.py", "layers.py", "utils.py", "kitti_utils.py", "datasets", "networks"),
        ),
        "train.py",
        _monodepth,
        ("drives",),
        needs=("skimage", "tensorboardX", "six"),
        source_links={"splits": "drives/splits"},
        kind="depth, PIL pyramids",
        patches=(
            Patch(
                "datasets/mono_dataset.py",
                "color_aug = transforms.ColorJitter.get_params(",
                "color_aug = transforms.ColorJitter(",
            ),
            Patch("trainer.py", "self.val_iter.next()", "next(self.val_iter)", 2),
        ),
        small="64 x 192 pixels",
        edits=(
            Edit(
                "(?i)hue",
                (Patch("datasets/mono_dataset.py", "self.hue = (-0.1, 0.1)", "self.hue = (0, 0)"),),
                note="no hue",
            ),
            Edit(
                "ColorJitter",
                (Patch("datasets/mono_dataset.py", "if do_color_aug:", "if False:"),),
                note="no ColorJitter",
            ),
        ),
    ),
    Script(
        "swav",
        Source(
            "facebookresearch/swav",
            "06b1b7cbaf6ba2a792300d79c7299db98b93b7f9",
            ("main_swav.py", "src"),
        ),
        "main_swav.py",
        _swav,
        ("images",),
        kind="self-supervision, eight crops",
        environment={"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29561"}
        | {"PUBLIC_ONE_PROCESS": "1"},
        patches=(
            Patch("apex/__init__.py", "", "amp = None\n"),
            Patch("apex/parallel/__init__.py", "", "\n"),
            Patch(
                "apex/parallel/LARC.py",
                "",
                "class LARC:\n    def __init__(self, optimizer, **_):\n        self.optim = optimizer\n\n"
                "    def __getattr__(self, name):\n        return getattr(self.optim, name)\n",
            ),
            Patch("src/utils.py", "torch.cuda.device_count()", "1", 2),
            Patch(
                "src/resnet50.py",
                "",
                f"\n\nfrom {SMALL} import Embedding\n\n\n"
                "def small(output_dim, nmb_prototypes, **_):\n    return Embedding(output_dim, nmb_prototypes)\n",
            ),
        ),
        small="two layers of 16 and 32 channels; apex's LARC left out",
        edits=(
            Edit("(?i)hue", (Patch("src/multicropdataset.py", "0.8*s, 0.2*s)", "0.8*s, 0)"),), note="no hue"),
            Edit("ColorJitter", (Patch("src/multicropdataset.py", "[rnd_color_jitter, ", "["),), note="no ColorJitter"),
        ),
    ),
    Script(
        "mae",
        Source(
            "facebookresearch/mae",
            "efb2a8062c206524e35e47d04501ed4f544c0ae8",
            ("main_pretrain.py", "engine_pretrain.py", "models_mae.py", "util"),
        ),
        "main_pretrain.py",
        _mae,
        ("images",),
        needs=("timm", "tensorboard"),
        kind="self-supervision, one large crop",
        patches=(
            Patch("main_pretrain.py", 'assert timm.__version__ == "0.3.2"', "# no version check"),
            Patch("main_pretrain.py", "optim_factory.add_weight_decay(", "optim_factory.param_groups_weight_decay("),
            Patch("models_mae.py", "qk_scale=None, ", "", 2),
            Patch(
                "models_mae.py",
                "",
                "\n\ndef mae_small(**kwargs):\n"
                "    sizes = dict(embed_dim=96, depth=2, num_heads=3, mlp_ratio=2, patch_size=16)\n"
                "    decoder = dict(decoder_embed_dim=64, decoder_depth=1, decoder_num_heads=2)\n"
                "    return MaskedAutoencoderViT(norm_layer=nn.LayerNorm, **sizes, **decoder, **kwargs)\n",
            ),
        ),
        small="two layers of 96, a decoder of one layer",
    ),
    Script(
        "text-recognition",
        Source(
            "clovaai/deep-text-recognition-benchmark",
            "e2117f2fb882b3c6085030500a260c113be27a63",
            ("train.py", "test.py", "dataset.py", "model.py", "utils.py", "modules"),
        ),
        "train.py",
        _words,
        ("words",),
        needs=("lmdb", "natsort", "nltk", "six"),
        kind="text recognition, two loaders",
        patches=(
            Patch(
                "dataset.py", "from torch._utils import _accumulate", "from itertools import accumulate as _accumulate"
            ),
        ),
        small="64 channels",
    ),
    Script(
        "ssd-tutorial",
        Source(
            "sgrvinod/a-PyTorch-Tutorial-to-Object-Detection",
            "5d5b75968c3cf1ffd2718bf828a7560b7ee8e8b5",
            ("train.py", "datasets.py", "model.py", "utils.py"),
        ),
        "train.py",
        lambda at: [],
        ("boxes",),
        links={"TRAIN_images.json": "boxes/TRAIN_images.json", "TRAIN_objects.json": "boxes/TRAIN_objects.json"},
        kind="detection, PIL and tensors",
        patches=(
            Patch("train.py", "workers = 4 ", "workers = 2 "),
            Patch(
                "model.py",
                "",
                f"\n\nfrom {SMALL} import Detector\n\n_Original = SSD300\n\n\ndef SSD300(n_classes):\n"
                "    return Detector(n_classes, _Original.create_prior_boxes)\n",
            ),
        ),
        small="three layers of 8 and 16 channels, with SSD300's default boxes and loss",
        edits=(Edit("(?i)hue|photometric", (Patch("utils.py", "FT.adjust_hue]", "]"),), note="without adjust_hue"),),
    ),
    Script(
        "srgan",
        Source(
            "leftthomas/SRGAN",
            "7ddfdf27273c42d858ec52cab5ca1cbfca81d0be",
            ("train.py", "data_utils.py", "loss.py", "model.py", "pytorch_ssim"),
        ),
        "train.py",
        lambda at: ["--crop_size", "24"],
        ("sharp",),
        needs=("pandas",),
        links={"data": "sharp"},
        kind="super-resolution, PNG",
        patches=(
            Patch("train.py", "num_workers=4, batch_size=64", "num_workers=2, batch_size=8"),
            Patch("loss.py", "from torchvision.models.vgg import vgg16", f"from {SMALL} import Perception"),
            Patch("loss.py", "vgg16(pretrained=True)", "Perception()"),
        ),
        small="crops of 24 pixels, a perceptual loss of two layers",
    ),
    Script(
        "pose-resnet",
        Source(
            "microsoft/human-pose-estimation.pytorch",
            "49f3f4458c9d5917c75c37a6db48c6a0d7cd89a1",
            ("pose_estimation", "lib", "experiments/mpii/resnet50"),
        ),
        "pose_estimation/train.py",
        _pose,
        ("poses",),
        needs=("cv2", "easydict", "tensorboardX", "json_tricks", "pycocotools"),
        cwd=".",
        source_links={"data": "poses"},
        kind="pose, cv2",
        patches=(
            Patch("lib/core/config.py", "yaml.load(f)", "yaml.safe_load(f)"),
            Patch("lib/models/pose_resnet.py", "model.init_weights(cfg.MODEL.PRETRAINED)", "pass"),
            Patch("lib/nms/nms.py", "from .cpu_nms import cpu_nms", "cpu_nms = gpu_nms = None"),
            Patch("lib/nms/nms.py", "from .gpu_nms import gpu_nms", ""),
            Patch("pose_estimation/train.py", "writer_dict['writer'].add_graph", "(lambda *a, **k: None)"),
            Patch("experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml", "NUM_LAYERS: 50", "NUM_LAYERS: 18"),
            Patch(
                "experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml",
                "  - 256\n  - 256\n  NUM",
                "  - 64\n  - 64\n  NUM",
            ),
            Patch(
                "experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml", "    - 64\n    - 64", "    - 16\n    - 16"
            ),
            Patch("experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml", "    - 256", "    - 16", 3),
            Patch("experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml", "WORKERS: 4", "WORKERS: 2"),
            Patch(
                "experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml",
                "TRAIN:\n  BATCH_SIZE: 32",
                "TRAIN:\n  BATCH_SIZE: 8",
            ),
        ),
        small="ResNet-18 at 64 pixels",
    ),
    Script(
        "diffusion",
        Source(
            "lucidrains/denoising-diffusion-pytorch",
            "faed4db28e724735323fa91c70aa9b28a6e1cbac",
            ("denoising_diffusion_pytorch",),
        ),
        "diffuse.py",
        lambda at: [f"{at.data}/flowers"],
        ("flowers",),
        needs=("accelerate", "ema_pytorch", "einops"),
        kind="diffusion",
        patches=(Patch("diffuse.py", "", DIFFUSE),),
        small="U-Net of 8 channels at 32 pixels",
        note="the repository has no script: diffuse.py is the example of its README",
    ),
    Script(
        "unet",
        Source(
            "milesial/Pytorch-UNet",
            "21d7850f2af30a9695bbeea75f3136aa538cfc4a",
            ("train.py", "evaluate.py", "unet", "utils"),
        ),
        "train.py",
        lambda at: ["-e", "100", "-b", "4", "-s", "0.3", "-v", "1"],
        ("cars",),
        links={"data": "cars"},
        needs=("wandb",),
        kind="segmentation, PIL and numpy",
        patches=(
            Patch(
                "unet/__init__.py",
                "",
                f"\nfrom {SMALL} import Segmenter\n\n\ndef UNet(n_channels, n_classes, bilinear=False):\n"
                "    return Segmenter(n_channels, n_classes)\n",
            ),
        ),
        small="three layers of 16 channels",
        edits=(
            Edit(
                r"(?i)\b(resize|decode|load|loading|reducing_gap)\b",
                (
                    Patch(
                        "utils/data_loading.py",
                        "else Image.BICUBIC)",
                        "else Image.BICUBIC, reducing_gap=None if is_mask else 1.5)",
                    ),
                ),
                note="reducing_gap=1.5",
            ),
        ),
    ),
    Script(
        "transformers-pictures",
        Source(HF, HF_COMMIT, ("examples/pytorch/image-classification",)),
        "examples/pytorch/image-classification/run_image_classification.py",
        lambda at: transformers(
            at,
            *f"--model_name_or_path {at.data}/tiny/vit --train_dir {at.data}/images/train".split(),
            *[
                "--label_column_name",
                "label",
                "--per_device_train_batch_size",
                "16",
                "--ignore_mismatched_sizes",
                "True",
            ],
        ),
        ("images", "tiny"),
        needs=("transformers", "datasets", "accelerate", "evaluate"),
        environment={"HF_HOME": "{data}/hf", "HF_HUB_OFFLINE": "1"},
        kind="HF Trainer, pictures",
        patches=(
            Patch(
                "examples/pytorch/image-classification/run_image_classification.py",
                'evaluate.load("accuracy", cache_dir=model_args.cache_dir)',
                "None",
            ),
        ),
        small="ViT of three layers of 96 at 160 pixels",
    ),
    Script(
        "clip",
        Source(
            "moein-shariatnia/OpenAI-CLIP",
            "73fea1f9b71a4982997ea4c75070a845b547abef",
            ("main.py", "CLIP.py", "config.py", "dataset.py", "modules.py", "utils.py"),
        ),
        "main.py",
        lambda at: [],
        ("captions", "tiny"),
        links={"captions": "captions", "tiny": "tiny"},
        needs=("albumentations", "transformers", "timm", "pandas"),
        kind="pictures and captions, contrastive",
        patches=(
            Patch("config.py", "debug = True", "debug = False"),
            Patch("config.py", '"C:/Moein/AI/Datasets/Flicker-8k/Images"', '"captions/Images"'),
            Patch("config.py", '"C:/Moein/AI/Datasets/Flicker-8k"', '"captions"'),
            Patch("config.py", 'text_tokenizer = "distilbert-base-uncased"', 'text_tokenizer = "tiny/bert"'),
            Patch("config.py", "model_name = 'resnet50'", "model_name = 'mobilenetv3_small_050'"),
            Patch("config.py", "image_embedding = 2048", "image_embedding = 1024"),
            Patch("config.py", "text_embedding = 768", "text_embedding = 64"),
            Patch("modules.py", "DistilBertConfig()", "DistilBertConfig(n_layers=1, dim=64, hidden_dim=64, n_heads=2)"),
        ),
        small="MobileNet v3 small, DistilBERT of one layer",
        note="no workers",
    ),
)
