"""List the public scripts, the best first: where each comes from, what it reads, and how it was made to run here.

Every script keeps its own data set, transforms, collate function, loader and loop. ``patches`` changes what does not
run without a GPU, offline or with today's libraries, constants that the script has no option for, and the model where
it is too large for two cores.
"""

from __future__ import annotations

from ..recipes.catalogue import Place, Source
from .kinds import Edit, Patch, Script

_SMALL = "benchmarks.public.small_models"


def _workers(option: str, *patches: Patch) -> tuple[Edit, ...]:
    """Return the edits for advice about the number of workers, which all scripts get."""
    options = {option: "{0}"} if option else {}
    return (Edit(r"num_workers=(\d+)", patches, options),)


def _nested_unet(at: Place) -> list[str]:
    sized = "--arch NestedUNet --input_w 96 --input_h 96 -b 8"
    return [*sized.split(), "--num_workers", str(at.workers), "--epochs", "100"]


def _yolo(at: Place) -> list[str]:
    where = ["--data", f"{at.data}/yolo/data.yaml", "--project", str(at.work), "--workers", str(at.workers)]
    sized = "--cfg models/yolov5n.yaml --img 160 --batch-size 8 --device cpu --epochs 100 --noval --noplots --noautoanchor"
    return [*where, "--weights", "", *sized.split()]


def _voxceleb(at: Place) -> list[str]:
    data = f"{at.data}/speakers"
    where = {
        "train_list": "train_list.txt",
        "test_list": "test_list.txt",
        "train_path": "wav",
        "test_path": "wav",
        "musan_path": "musan",
        "rir_path": "rirs",
    }
    named = [word for name, path in where.items() for word in (f"--{name}", f"{data}/{path}")]
    sized = "--augment --model VGGVox --encoder_type TAP --nOut 64 --n_mels 40 --nClasses 100 --batch_size 16"
    rest = f"--trainfunc softmax --max_frames 100 --nDataLoaderThread {at.workers} --save_path {at.work}/exps"
    return [*named, *sized.split(), *rest.split()]


def _commands(at: Place) -> list[str]:
    data = f"{at.data}/commands"
    where = ["--train-dataset", f"{data}/train", "--valid-dataset", f"{data}/valid"]
    where += ["--background-noise", f"{data}/train/_background_noise_"]
    return [*where, "--batch-size", "16", "--dataload-workers-nums", str(at.workers), "--model", "resnet18"]


def _hifigan(at: Place) -> list[str]:
    data = f"{at.data}/readings"
    where = ["--input_wavs_dir", f"{data}/wavs", "--input_training_file", f"{data}/train.txt"]
    where += ["--input_validation_file", f"{data}/valid.txt", "--checkpoint_path", f"{at.work}/checkpoints"]
    return [*where, "--config", f"{at.repository}/config_v3.json"]


def _video(at: Place) -> list[str]:
    data = f"{at.data}/clips"
    where = f"--video_path {data}/jpg --annotation_path {data}/annotation.json --result_path {at.work}/results"
    sized = "--dataset kinetics --model resnet --model_depth 10 --n_classes 10 --batch_size 4 --sample_size 64"
    rest = f"--no_val --no_cuda --n_threads {at.workers} --sample_duration 16 --colorjitter --conv1_t_stride 2"
    return [*where.split(), *sized.split(), *rest.split()]


def _mae(at: Place) -> list[str]:
    where = ["--data_path", f"{at.data}/images", "--output_dir", str(at.work), "--log_dir", str(at.work)]
    sized = "--model mae_vit_base_patch16 --batch_size 16 --input_size 224 --device cpu --epochs 100"
    return [*where, *sized.split(), "--num_workers", str(at.workers)]


def _swav(at: Place) -> list[str]:
    crops = "--nmb_crops 2 6 --size_crops 224 96 --min_scale_crops 0.14 0.05 --max_scale_crops 1. 0.14"
    sized = "--batch_size 8 --use_fp16 false --nmb_prototypes 100 --feat_dim 64 --epochs 100 --sync_bn none"
    return ["--data_path", f"{at.data}/images/train", *crops.split(), *sized.split(), "--workers", str(at.workers)]


def _monodepth(at: Place) -> list[str]:
    sized = "--num_layers 18 --weights_init scratch --height 96 --width 320 --batch_size 4 --no_cuda --scales 0"
    where = ["--data_path", f"{at.data}/drives/kitti", "--log_dir", f"{at.work}/logs"]
    return [*where, *sized.split(), "--num_workers", str(at.workers)]


def _words(at: Place) -> list[str]:
    data = f"{at.data}/words"
    sized = "--Transformation None --FeatureExtraction VGG --SequenceModeling None --Prediction CTC"
    rest = f"--output_channel 64 --hidden_size 32 --batch_size 64 --workers 1 --rgb --PAD"
    return ["--train_data", f"{data}/train", "--valid_data", f"{data}/valid", *sized.split(), *rest.split()]


def _transformers(at: Place, *more: str) -> list[str]:
    rest = "--do_train --remove_unused_columns False --report_to none --save_strategy no --num_train_epochs 50"
    return [*more, "--output_dir", f"{at.work}/out", *rest.split(), "--dataloader_num_workers", str(at.workers)]


def _pose(at: Place) -> list[str]:
    return ["--cfg", f"{at.repository}/experiments/mpii/resnet50/256x256_d256x3_adam_lr1e-3.yaml", "--frequent", "20"]


def _informer(at: Place) -> list[str]:
    where = ["--model", "informer", "--data", "ETTh1", "--root_path", f"{at.data}/meters/"]
    sized = "--d_model 32 --d_ff 64 --n_heads 2 --e_layers 1 --d_layers 1 --seq_len 96 --train_epochs 100"
    return [*where, *sized.split(), "--num_workers", str(at.workers)]


HF = "yunkchen/transformers"
HF_COMMIT = "1618d44b9295361607ec74d7be860ba886aac039"

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
            Patch("train.py", "from albumentations.augmentations import transforms", "import albumentations as transforms"),
            Patch("train.py", "transforms.Flip()", "transforms.HorizontalFlip()"),
            Patch("train.py", "transforms.RandomBrightness()", "transforms.RandomBrightnessContrast(contrast_limit=0)"),
            Patch("train.py", "transforms.RandomContrast()", "transforms.RandomBrightnessContrast(brightness_limit=0)"),
            Patch("archs.py", "[32, 64, 128, 256, 512]", "[8, 16, 16, 16, 16]", 2),
        ),
        small="8 to 16 channels",
        edits=_workers("--num_workers"),
    ),
    Script(
        "yolov5",
        Source("ultralytics/yolov5", "5081342f04fb287fc2e5f2b5a4e06752b7937b1c", ("train.py", "val.py", "export.py", "models", "utils", "data", "hubconf.py", "benchmarks.py")),
        "train.py",
        _yolo,
        ("yolo",),
        needs=("cv2", "ultralytics", "pandas"),
        kind="detection with mosaics, cv2",
        patches=(Patch("utils/general.py", """check_font("Arial.ttf" if""", """str("Arial.ttf" if"""),),
        small="YOLOv5n at 160 pixels",
        cwd=".",
        edits=_workers("--workers"),
    ),
)
