"""Examples of Lightning: their modules as a `un.Task`, against Lightning's own Trainer with the same batches."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unisono as un
from bench.others.program import BEFORE, FLOAT32_LIMIT, SEED, WEIGHTS, Found, Program, compiled
from unisono.data.sharding_plan import Plan

MOVED = "the module in a `un.Task`, trained by `un.train`"
BASICS, TEMPLATES = "examples/pytorch/basics", "examples/pytorch/domain_templates"
BATCH, EPOCHS = 16, 2
PLAIN_TASK = "a plain task"


def _program(name: str, path: str, stand_in: str, needs: str, **more: Any) -> Program:
    given = {"moved": MOVED, "repository": "Lightning-AI/pytorch-lightning", **more}
    return Program(family="lightning_examples", name=name, path=path, stand_in=stand_in, needs=needs, **given)


DIGITS = "pictures(75, 1, 28), pictures(30, 1, 28)"
OWN_ERROR = (r"self\.learning_rate", "self.lr")
NO_NORM = (r"nn\.BatchNorm\w+\([^()]*\)", "nn.Identity()")

PROGRAMS = [
    _program(
        "lightning backbone_image_classifier",
        f"{BASICS}/backbone_image_classifier.py",
        "75 random pictures",
        f"LitClassifier(), {DIGITS}",
    ),
    _program("lightning autoencoder", f"{BASICS}/autoencoder.py", "75 random pictures", f"LitAutoEncoder(), {DIGITS}"),
    _program(
        "lightning transformer",
        f"{BASICS}/transformer.py",
        "75 random texts of 7 words of 40",
        "small(LanguageModel(40), model=Transformer(40, 8, 2, 8, 1)), texts(75), texts(30)",
    ),
    _program(
        "lightning generative_adversarial_net",
        f"{TEMPLATES}/generative_adversarial_net.py",
        "75 random pictures",
        f"GAN(), {DIGITS}",
    ),
    _program(
        "lightning computer_vision_fine_tuning",
        f"{TEMPLATES}/computer_vision_fine_tuning.py",
        "75 random pictures of 3 x 16 x 16, and a small network in the place of ResNet-50",
        "TransferLearningModel(milestones=(1, 2)), pictures(75, 3, 16, 2), pictures(30, 3, 16, 2)",
        moved=f"{MOVED}, without the callback that unfreezes layers",
        limit=1e-7,  # TorchMetrics counts in float32
    ),
    _program(
        "lightning semantic_segmentation",
        f"{TEMPLATES}/semantic_segmentation.py",
        "75 random pictures and masks of 16 x 16, a third of each mask ignored",
        "SegModel(kitti(_create_synth_kitti_dataset), num_layers=2, features_start=4), masks(75, True), masks(30, True)",
        moved=f"{MOVED}; in both runs without batch-norm and with its own misspelt name mended",
        edits=[OWN_ERROR, NO_NORM],
        limit=FLOAT32_LIMIT,
    ),
    _program(
        "lightning semantic_segmentation, masks that differ",
        f"{TEMPLATES}/semantic_segmentation.py",
        "75 random pictures and masks of 16 x 16, between none and two thirds of a mask ignored",
        "SegModel(kitti(_create_synth_kitti_dataset), num_layers=2, features_start=4), masks(75, False), masks(30, False)",
        moved=f"{MOVED}; in both runs without batch-norm and with its own misspelt name mended",
        edits=[OWN_ERROR, NO_NORM],
        limit=FLOAT32_LIMIT,
    ),
    _program(
        f"lightning semantic_segmentation, {PLAIN_TASK}",
        f"{TEMPLATES}/semantic_segmentation.py",
        "the same",
        "SegModel(kitti(_create_synth_kitti_dataset), num_layers=2, features_start=4), masks(75, False), masks(30, False)",
        moved='its network in a `un.Task(loss="cross_entropy", loss_options={"ignore_label": 250})`; the rest as above',
        edits=[OWN_ERROR, NO_NORM],
        not_compared="logged",
        limit=FLOAT32_LIMIT,
    ),
]


def run(program: Program, texts: dict[str, str], is_moved: bool) -> Found:
    """Collective when moved, blocking: the weights, and what the module logged in its last validation."""
    torch.set_default_dtype(torch.float32 if program.limit == FLOAT32_LIMIT else torch.float64)
    names: dict[str, Any] = {"__name__": "module_of_others", "__file__": program.path}
    sys.modules[names["__name__"]] = type(sys)(names["__name__"])
    exec(compiled(program, next(iter(texts.values()))), names)
    module, training, validation = eval(program.needs, {**names, **globals()})
    torch.manual_seed(SEED)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    if not is_moved:
        return _by_lightning(module, training, validation)
    if program.name.endswith(PLAIN_TASK):
        return _by_plain_task(module, training, validation)
    task = un.Task(
        model=lambda: module,
        data=lambda: un.Splits(train=training, validation=validation),
        global_batch=BATCH,
        epochs=EPOCHS,
        seed=SEED,
    )
    return _by_unisono(task, module)


def _by_plain_task(module: Any, training: Any, validation: Any) -> Found:
    """What the module of the segmentation does, said by a task: its steps end, and its cosine falls, after the same epochs."""

    def falling(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    task = un.Task(
        model=lambda: module.net,
        data=lambda: un.Splits(train=training, validation=validation),
        loss="cross_entropy",
        loss_options={"ignore_label": 250},
        optimizer="adam",
        lr=module.lr,
        schedule=falling,
        schedule_options={"interval": "epoch"},
        global_batch=BATCH,
        epochs=EPOCHS,
        seed=SEED,
    )
    return _by_unisono(task, module.net, "net.")


def _by_unisono(task: un.Task, module: Any, prefix: str = "") -> Found:
    ended = un.train(task, out="../run")
    weights = load_file(ended.out / "weights.safetensors")
    found = {f"{WEIGHTS} {prefix}{name}": np.asarray(weights[name]) for name, _ in module.named_parameters()}
    return found | {_logged(name): np.array(value) for name, value in ended.summary["metrics"].items() if name.startswith("val_")}


def _by_lightning(module: Any, training: Any, validation: Any) -> Found:
    import lightning.pytorch as lightning
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment

    found: Found = {f"{BEFORE} {name}": one.detach().numpy().copy() for name, one in module.named_parameters()}
    plan, epochs = Plan(len(training), BATCH, SEED), iter(range(EPOCHS))

    class Batches:
        """Those of Unisono, epoch by epoch."""

        def __len__(self) -> int:
            return plan.steps_per_epoch

        def __iter__(self) -> Any:
            order = plan.order(next(epochs))
            return iter([order[plan.batch(step)].tolist() for step in range(plan.steps_per_epoch)])

    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    alone: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "plugins": [LightningEnvironment()]}
    trainer = lightning.Trainer(max_epochs=EPOCHS, num_sanity_val_steps=0, **alone, **quiet)
    loader = DataLoader(training, batch_sampler=Batches())
    trainer.fit(module, loader, DataLoader(validation, batch_size=BATCH))
    found |= {f"{WEIGHTS} {name}": one.detach().numpy() for name, one in module.named_parameters()}
    logged = {name: value for name, value in trainer.callback_metrics.items() if not name.startswith("train")}
    return found | {_logged(name): np.array(float(value)) for name, value in logged.items()}


def _logged(name: str) -> str:
    """Pure: one name for what Lightning and Unisono call by two."""
    return "logged " + name.removeprefix("val_").removesuffix("_epoch").replace("valid_", "")


def pictures(num: int, channels: int, size: int, num_classes: int = 10) -> Any:
    random = np.random.default_rng(num)
    pixels = torch.from_numpy(random.random((num, channels, size, size))).to(torch.get_default_dtype())
    return TensorDataset(pixels, torch.from_numpy(random.integers(0, num_classes, num)))


def texts(num: int) -> Any:
    words = torch.from_numpy(np.random.default_rng(num).integers(0, 40, (num, 8)))
    return TensorDataset(words[:, :-1], words[:, 1:])


def masks(num: int, alike: bool) -> Any:
    """Pictures and the class of every pixel; of each mask the first rows are ignored."""
    random = np.random.default_rng(num)
    classes = random.integers(0, 19, (num, 16, 16))
    for number, one in enumerate(classes):
        one[: 5 if alike else number % 11] = 250
    return TensorDataset(torch.from_numpy(random.random((num, 3, 16, 16))).to(torch.get_default_dtype()), torch.from_numpy(classes))


def kitti(create: Any) -> str:
    """Local: the folder that the module wants to see."""
    create("kitti", (64, 48))
    return "kitti"


def small(module: Any, **parts: Any) -> Any:
    """The module with smaller parts."""
    for name, part in parts.items():
        setattr(module, name, part)
    return module
