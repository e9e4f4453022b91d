"""Scripts that learn from recordings or from text."""

from __future__ import annotations

from ...recipes.catalogue import Place, Source
from ..kinds import Edit, Patch, Script
from .common import HF, HF_COMMIT, SMALL, transformers


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


#: Of a recording, read only the part that is used.
READ_A_PART = """

_whole = loadWAV


def loadWAV(filename, max_frames, evalmode=True, num_eval=10):
    length, known = max_frames * 160 + 240, soundfile.info(filename).frames
    if evalmode or known <= length:
        return _whole(filename, max_frames, evalmode, num_eval)
    start = int(random.random() * (known - length))
    return soundfile.read(filename, frames=length, start=start)[0][None].astype(numpy.float64)
"""

SCRIPTS = (
    Script(
        "voxceleb",
        Source(
            "clovaai/voxceleb_trainer",
            "f51bab870672a9b0b50fa158b4e30f329e7866d7",
            (
                "trainSpeakerNet.py",
                "SpeakerNet.py",
                "DatasetLoader.py",
                "tuneThreshold.py",
                "utils.py",
                "models",
                "loss",
                "optimizer",
                "scheduler",
            ),
        ),
        "trainSpeakerNet.py",
        _voxceleb,
        ("speakers",),
        needs=("soundfile", "torchaudio"),
        kind="speakers, soundfile and scipy",
        patches=(
            Patch("SpeakerNet.py", 'torch.device(f"cuda:{gpu}")', 'torch.device("cpu")'),
            Patch(
                "models/VGGVox.py",
                "",
                f"\n\nfrom {SMALL} import Speaker\n\n\ndef MainModel(nOut, **_):\n    return Speaker(nOut)\n",
            ),
        ),
        small="two layers over mel bands",
        edits=(
            Edit(
                r"(?i)\b(decode|read|load|loading|soundfile)\b",
                (Patch("DatasetLoader.py", "", READ_A_PART),),
                note="read only the cut",
            ),
        ),
    ),
    Script(
        "speech-commands",
        Source(
            "tugstugi/pytorch-speech-commands",
            "36f3cd9e0d2b2d50cf4b023c9af1544fdfeeb886",
            ("train_speech_commands.py", "mixup.py", "datasets", "models", "transforms", "checkpoints"),
        ),
        "train_speech_commands.py",
        _commands,
        ("commands",),
        needs=("librosa", "tensorboardX"),
        cwd=".",
        kind="spoken words, librosa",
        patches=(
            Patch("train_speech_commands.py", "async=True", "non_blocking=True", 0),
            Patch(
                "models/__init__.py",
                "",
                f"\n\nfrom {SMALL} import Bands\n\n\n"
                "def create_model(num_classes, **_):\n    return Bands(num_classes)\n",
            ),
            Patch("train_speech_commands.py", "loss.data[0]", "loss.item()", 4),
            Patch("train_speech_commands.py", "Variable(inputs, volatile = True)", "inputs", 0),
            Patch("datasets/speech_commands_dataset.py", "load(path, sample_rate)", "load(path, sr=sample_rate)"),
            Patch("transforms/transforms_wav.py", "load(path, self.sample_rate)", "load(path, sr=self.sample_rate)"),
            Patch("transforms/transforms_wav.py", "melspectrogram(samples,", "melspectrogram(y=samples,"),
            Patch("transforms/transforms_stft.py", "phase_vocoder(stft, 1+scale", "phase_vocoder(stft, rate=1+scale"),
            Patch(
                "transforms/transforms_stft.py",
                "filters.mel(sample_rate, n_fft, self.n_mels)",
                "filters.mel(sr=sample_rate, n_fft=n_fft, n_mels=self.n_mels)",
            ),
        ),
        small="two layers of 16 and 32 channels",
        edits=(
            Edit(
                "StretchAudioOnSTFT",
                (Patch("train_speech_commands.py", "StretchAudioOnSTFT(), ", ""),),
                note="without it, the bound of the forecast",
            ),
        ),
    ),
    Script(
        "hifi-gan",
        Source(
            "jik876/hifi-gan",
            "4769534d45265d52a904b850da5a622601885777",
            ("train.py", "env.py", "meldataset.py", "models.py", "utils.py", "config_v3.json"),
        ),
        "train.py",
        _hifigan,
        ("readings",),
        needs=("librosa", "tensorboard"),
        kind="vocoder, mel bands in the data set",
        patches=(
            Patch("train.py", "torch.device('cuda:{:d}'.format(rank))", "torch.device('cpu')"),
            Patch(
                "meldataset.py",
                "librosa_mel_fn(sampling_rate, n_fft, num_mels, fmin, fmax)",
                "librosa_mel_fn(sr=sampling_rate, n_fft=n_fft, n_mels=num_mels, fmin=fmin, fmax=fmax)",
            ),
            Patch("meldataset.py", "spec = torch.stft(", "spec = torch.view_as_real(torch.stft("),
            Patch("meldataset.py", "onesided=True)", "onesided=True, return_complex=True))"),
            Patch("config_v3.json", '"upsample_initial_channel": 256', '"upsample_initial_channel": 16'),
            Patch("config_v3.json", '"num_workers": 4', '"num_workers": 2'),
            Patch("config_v3.json", '"batch_size": 16', '"batch_size": 8'),
            Patch(
                "models.py",
                "",
                f"\n\nfrom {SMALL} import Critics\n\n\nMultiPeriodDiscriminator = MultiScaleDiscriminator = Critics\n",
            ),
        ),
        small="generator of 16 channels, one small discriminator",
        edits=(
            Edit(
                r"(?i)\b(mel|load|loading|cache|keep|precompute)\b",
                (Patch("meldataset.py", "if fmax not in mel_basis", "if f'{fmax}_{y.device}' not in mel_basis"),),
                note="the mel filters' key as they are stored",
            ),
        ),
    ),
    Script(
        "bert",
        Source("codertimo/BERT-pytorch", "d10dc4f9d5a6f2ca74380f62039526eb7277c671", ("bert_pytorch",)),
        "pretrain.py",
        lambda at: [
            *f"-c {at.data}/pairs/corpus.txt -v vocab.pkl -o bert.model -b 16 -w {at.workers} -s 64".split(),
            *["-hs", "32", "-l", "1", "-a", "2", "--with_cuda=", "--log_freq", "1000", "-e", "100"],
        ],
        ("pairs",),
        needs=("tqdm",),
        kind="words masked in Python",
        patches=(
            Patch(
                "pretrain.py",
                "",
                "import sys\n\nfrom bert_pytorch.__main__ import train\n"
                "from bert_pytorch.dataset.vocab import WordVocab\n\n"
                "with open(sys.argv[sys.argv.index('-c') + 1]) as corpus:\n"
                "    WordVocab(corpus, min_freq=5).save_vocab('vocab.pkl')\ntrain()\n",
            ),
        ),
        small="one layer of 32",
        note="pretrain.py is what its two console scripts do, one after the other",
    ),
    Script(
        "transformers-text",
        Source(HF, HF_COMMIT, ("examples/pytorch/language-modeling",)),
        "examples/pytorch/language-modeling/run_mlm.py",
        lambda at: list(
            transformers(
                at,
                *f"--model_name_or_path {at.data}/tiny/bert --train_file {at.data}/tiny/corpus.txt".split(),
                *["--line_by_line", "True", "--max_seq_length", "64", "--per_device_train_batch_size", "16"],
            )
        ),
        ("tiny",),
        needs=("transformers", "datasets", "accelerate", "evaluate"),
        environment={"HF_HOME": "{data}/hf", "HF_HUB_OFFLINE": "1"},
        kind="HF Trainer, masked words",
        small="BERT of three layers of 96",
    ),
)
