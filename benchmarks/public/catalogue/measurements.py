"""Scripts that learn from volumes, point clouds, crystals, tables and time series."""

from __future__ import annotations

from ...recipes.catalogue import Place, Source
from ..kinds import Edit, Patch, Script
from .common import made_once

#: The U-Net's own example (3DUnet_confocal_boundary), for a small network and small patches.
UNET3D = """model:
  name: UNet3D
  in_channels: 1
  out_channels: 1
  layer_order: gcr
  f_maps: 8
  num_groups: 4
  num_levels: 2
  final_sigmoid: true
loss:
  name: BCEDiceLoss
  skip_last_target: true
optimizer:
  learning_rate: 0.0002
  weight_decay: 0.00001
eval_metric:
  name: BoundaryAdaptedRandError
  threshold: 0.4
  use_last_target: true
  use_first_input: true
lr_scheduler:
  name: ReduceLROnPlateau
  mode: min
  factor: 0.5
  patience: 30
trainer:
  tensorboard_formatter:
    skip_last_target: true
  eval_score_higher_is_better: False
  checkpoint_dir: checkpoints
  validate_after_iters: 100000
  log_after_iters: 50000
  max_num_epochs: 1000
  max_num_iterations: 150000
loaders:
  dataset: StandardHDF5Dataset
  batch_size: 2
  num_workers: 2
  raw_internal_path: raw
  label_internal_path: label
  global_normalization: true
  train:
    file_paths: [volumes/train]
    slice_builder:
      name: SliceBuilder
      patch_shape: [16, 64, 64]
      stride_shape: [8, 32, 32]
    transformer:
      raw:
        - name: Standardize
        - name: RandomFlip
        - name: RandomRotate90
        - name: RandomRotate
          axes: [[2, 1]]
          angle_spectrum: 45
          mode: reflect
        - name: ElasticDeformation
          spline_order: 3
        - name: GaussianBlur3D
          execution_probability: 0.5
        - name: AdditiveGaussianNoise
          execution_probability: 0.2
        - name: ToTensor
          expand_dims: true
      label:
        - name: RandomFlip
        - name: RandomRotate90
        - name: RandomRotate
          axes: [[2, 1]]
          angle_spectrum: 45
          mode: reflect
        - name: ElasticDeformation
          spline_order: 0
        - name: StandardLabelToBoundary
          append_label: true
        - name: ToTensor
          expand_dims: false
  val:
    file_paths: [volumes/val]
    slice_builder:
      name: SliceBuilder
      patch_shape: [16, 64, 64]
      stride_shape: [16, 64, 64]
    transformer:
      raw:
        - name: Standardize
        - name: ToTensor
          expand_dims: true
      label:
        - name: StandardLabelToBoundary
          append_label: true
        - name: ToTensor
          expand_dims: false
"""


def _informer(at: Place) -> list[str]:
    where = ["--model", "informer", "--data", "ETTh1", "--root_path", f"{at.data}/meters/"]
    sized = "--d_model 32 --d_ff 64 --n_heads 2 --e_layers 1 --d_layers 1 --seq_len 96 --train_epochs 100"
    return [*where, *sized.split(), "--num_workers", str(at.workers)]


SCRIPTS = (
    Script(
        "pointnet",
        Source(
            "yanx27/Pointnet_Pointnet2_pytorch",
            "eb64fe0b4c24055559cea26299cb485dcb43d8dd",
            ("train_classification.py", "provider.py", "data_utils", "models"),
        ),
        "train_classification.py",
        lambda at: [
            "--use_cpu",
            "--model",
            "pointnet_cls",
            "--num_category",
            "10",
            "--batch_size",
            "4",
            "--num_point",
            "256",
            "--use_uniform_sample",
        ],
        ("clouds",),
        cwd=".",
        source_links={"data": "clouds"},
        kind="point clouds, numpy",
        patches=(
            Patch("train_classification.py", "num_workers=10", "num_workers=2", 2),
            Patch("models/pointnet_utils.py", "1024", "128", 12),
            Patch("models/pointnet_cls.py", "1024", "128"),
        ),
        small="128 features of a cloud of 256 points",
        edits=(made_once("data_utils/ModelNetDataLoader.py", "ModelNetDataLoader", r"^once|np\.(sum|argmax|loadtxt)"),),
    ),
    Script(
        "monai-unet",
        Source(
            "Project-MONAI/tutorials",
            "b3c6c998c931d78b61c4d32b37f962a987400f8a",
            ("3d_segmentation/torch/unet_training_dict.py",),
        ),
        "3d_segmentation/torch/unet_training_dict.py",
        lambda at: [],
        (),
        needs=("monai", "nibabel", "tensorboard"),
        kind="medical volumes, MONAI",
        patches=(
            Patch("3d_segmentation/torch/unet_training_dict.py", "128, 128, 128, num_seg", "96, 96, 96, num_seg"),
            Patch("3d_segmentation/torch/unet_training_dict.py", "[96, 96, 96], pos=1", "[48, 48, 48], pos=1"),
            Patch("3d_segmentation/torch/unet_training_dict.py", "(16, 32, 64, 128, 256)", "(4, 8, 8, 16, 16)"),
            Patch("3d_segmentation/torch/unet_training_dict.py", "val_interval = 2", "val_interval = 1000"),
            Patch("3d_segmentation/torch/unet_training_dict.py", "range(5)", "range(500)"),
            Patch("3d_segmentation/torch/unet_training_dict.py", "num_workers=4", "num_workers=2", 3),
        ),
        small="U-Net of 4 to 16 channels on crops of 48 voxels",
        note="epochs of ten batches: the workers start anew every second or so",
        edits=(
            Edit(
                r"(?i)\b(cache|keep|precompute)\b",
                (
                    Patch(
                        "3d_segmentation/torch/unet_training_dict.py",
                        "train_ds = monai.data.Dataset(",
                        "train_ds = monai.data.CacheDataset(",
                    ),
                ),
            ),
        ),
    ),
    Script(
        "unet3d",
        Source("wolny/pytorch-3dunet", "a33e2c7038a0b51296ca4f99b0f0ed4b61740705", ("pytorch3dunet",)),
        "pytorch3dunet/train.py",
        lambda at: ["--config", f"{at.repository}/config.yml"],
        ("volumes",),
        links={"volumes": "volumes"},
        needs=("h5py", "skimage", "tensorboard"),
        environment={"PYTHONPATH": "{repository}"},
        kind="volumes, scipy and HDF5",
        patches=(Patch("config.yml", "", UNET3D),),
        small="U-Net of 8 channels on patches of 16 x 64 x 64",
    ),
    Script(
        "cgcnn",
        Source("txie-93/cgcnn", "f42ab233c4ee0c416879d6bc2d22a264418413ad", ("main.py", "cgcnn")),
        "main.py",
        lambda at: (
            f"--disable-cuda -j {at.workers} --epochs 100 -b 16 --n-conv 2 --train-ratio 0.9 --val-ratio 0.05 "
            f"--test-ratio 0.05 {at.data}/crystals".split()
        ),
        ("crystals",),
        needs=("pymatgen", "sklearn"),
        kind="crystals as graphs",
        note="the data set caches its samples, each worker for itself and for one epoch",
        edits=(made_once("cgcnn/data.py", "CIFData"),),
    ),
    Script(
        "factorization",
        Source("rixwew/pytorch-fm", "f74ad19771eda104e99874d19dc892e988ec53fa", ("examples", "torchfm")),
        "examples/main.py",
        lambda at: [
            "--dataset_name",
            "criteo",
            "--device",
            "cpu",
            "--model_name",
            "fm",
            "--batch_size",
            "512",
            "--save_dir",
            ".",
        ],
        ("clicks",),
        needs=("lmdb", "sklearn"),
        links={".criteo": "clicks/criteo"},
        environment={"PYTHONPATH": "{repository}"},
        kind="tables in an LMDB",
        patches=(Patch("examples/main.py", "num_workers=8", "num_workers=2", 3),),
        edits=(
            Edit(
                "(?i)^(collate|hand-off)",
                (
                    Patch(
                        "examples/main.py",
                        "train_data_loader = DataLoader(train_dataset,",
                        "import numpy\n\n    def together(rows):\n        fields, targets = zip(*rows)\n"
                        "        return [torch.from_numpy(numpy.stack(column)) for column in (fields, targets)]\n\n"
                        "    train_data_loader = DataLoader(train_dataset, collate_fn=together,",
                    ),
                ),
                note="collate with numpy.stack",
            ),
        ),
    ),
    Script(
        "informer",
        Source(
            "zhouhaoyi/Informer2020",
            "29f2a739226a509202a092b464163da81fa74960",
            ("main_informer.py", "data", "exp", "models", "utils"),
        ),
        "main_informer.py",
        _informer,
        ("meters",),
        needs=("pandas", "sklearn"),
        kind="time series",
        small="one layer of 32",
    ),
)
