"""Changes to a task by name: what is taken, as what type, and what is refused with which words."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from unisono.errors import UsageError
from unisono.task.name_value import literal, parse
from unisono.task.overrides import FLAGS, PLAIN, arguments, change
from unisono.task.task import Choice, Range, Task
from unisono.task.train_config import MAX_THREADS, TrainConfig


def model(
    width: Annotated[int, Range(16, 256)] = 64, act: Annotated[str, Choice("relu", "gelu")] = "relu", rate: float = 0.5
) -> None:
    pass


def data(shares: Any = (0.1, 0.2), fast: bool = False, folder: str | None = None) -> None:
    pass


TASK = Task(model=model, data=data, optimizer_options={"momentum": 0.9, "nesterov": True})


@pytest.mark.parametrize(
    ("text", "value"),
    [("128", 128), ("1e-3", 1e-3), ("(1, 2)", (1, 2)), ("True", True), ("none", None), ("relu", "relu"), ("", ""), ("[1,", "[1,")],
)
def test_a_value_is_the_literal_that_it_spells(text: str, value: Any) -> None:
    assert literal(text) == value and type(literal(text)) is type(value)


def test_nesting_too_deep_for_the_parser_is_a_text() -> None:
    assert literal("(" * 5000) == "(" * 5000


def test_a_value_may_hold_equals_signs() -> None:
    assert parse(["data.folder=a=b", " lr = 0.1 "]) == {"data.folder": "a=b", "lr": 0.1}


@pytest.mark.parametrize(
    ("items", "words"), [(["lr"], "needs NAME=VALUE"), (["=3"], "received '=3'"), (["lr=1", "lr=2"], "given twice")]
)
def test_what_is_no_change_is_refused(items: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(items)


def test_each_change_reaches_its_reader() -> None:
    changed = change(
        TASK,
        {
            "model.width": 32,
            "data.fast": True,
            "optimizer.momentum": 0.5,
            "loss.ignore_label": 3,
            "algorithm.bucket_mb": 1,
            "lr": 1,
        },
    )
    assert changed.model == {"width": 32, "act": "relu", "rate": 0.5}
    assert changed.data == {"shares": (0.1, 0.2), "fast": True, "folder": None}
    assert changed.task.optimizer_options == {"momentum": 0.5, "nesterov": True}
    assert changed.task.loss_options == {"ignore_label": 3}
    assert changed.algorithm == {"bucket_mb": 1}
    assert changed.task.lr == 1.0 and type(changed.task.lr) is float
    assert TASK.lr is None and TASK.optimizer_options["momentum"] == 0.9  # the task itself stays


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model.widht", 3, "unknown name 'model.widht' in --set; did you mean 'model.width'"),
        ("modl.width", 3, "'modl' in --set; did you mean 'model'"),
        ("epoch", 3, "'epoch' in --set; did you mean 'epochs'"),
        ("model", 3, "--set model needs the name of an argument: --set model.NAME=VALUE"),
        ("step", 3, "unknown name 'step' in --set"),
        ("model.width", "abc", "--set model.width must be a whole number; received 'abc'"),
        ("model.width", 2.5, "must be a whole number; received 2.5"),
        ("model.width", True, "must be a whole number; received True"),
        ("model.act", "tanh", "must be one of 'relu', 'gelu'; received 'tanh'"),
        ("data.fast", 1, "must be true or false; received 1"),
        ("learning_rate", 3, "'learning_rate' in --set; did you mean 'lr'"),
        ("width", 3, "'width' in --set; did you mean 'model.width'"),
        ("weight_decay", 3, "'weight_decay' in --set; did you mean 'optimizer.weight_decay'"),
        ("epochs", "x", "--epochs must be a whole number of at least 1; received 'x'"),
        ("epochs", 0, "--epochs must be a whole number of at least 1; received 0"),
        ("lr", "fast", "--lr must be a finite number above 0; received 'fast'"),
        ("precision", "fp8", "--precision must be one of float32, tf32, bf16; received 'fp8'"),
        ("global_batch", 1e3, "--global-batch must be a whole number"),
        ("clip_norm", "x", "--set clip_norm must be a finite number above 0; received 'x'"),
        ("model.width", "(" * 5000, r"received '\({50,60}\.\.\.$"),
    ],
)
def test_overrides_without_effect_or_of_a_wrong_type_are_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        change(TASK, {name: value})


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [("model.rate", 1, 1.0), ("data.folder", 7, "7"), ("data.folder", None, None), ("data.shares", "x", "x")],
)
def test_a_value_becomes_what_its_annotation_says(name: str, given: Any, kept: Any) -> None:
    changed = change(TASK, {name: given})
    found = {**changed.model, **changed.data}[name.partition(".")[2]]
    assert found == kept and type(found) is type(kept)


def deep(depth, width=3):  # type: ignore[no-untyped-def]
    return depth, width


def test_an_argument_without_a_value_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"model of the task needs depth; give it with --set model.depth=VALUE, or a default"):
        arguments(deep, "model", {})
    assert arguments(deep, "model", {"depth": 2}) == {"depth": 2, "width": 3}


def test_a_factory_that_takes_any_name_gets_it() -> None:
    def anything(**more: int) -> dict[str, int]:
        return more

    assert arguments(anything, "model", {"depth": 2}) == {"depth": 2}


def test_a_factory_without_named_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match=r"arguments of .* cannot be read; wrap it in a function with def"):
        arguments(dict, "data", {})


def test_annotations_that_cannot_be_read_do_not_stand_in_the_way() -> None:
    def strange(width: NotThere = 3) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    assert arguments(strange, "model", {"width": "wide"}) == {"width": "wide"}


def test_every_option_of_its_own_is_a_setting_of_the_task() -> None:
    assert set(FLAGS) <= set(PLAIN) and FLAGS["monitor"] == "--best"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": "0.1"}, "lr of the task must be a finite number above 0; received '0.1'"),
        ({"lr": float("inf")}, "must be a finite number"),
        ({"lr": -1}, "lr of the task must be a finite number above 0; received -1"),
        ({"epochs": True}, "epochs of the task must be a whole number of at least 1; received True"),
        ({"global_batch": 0}, "global_batch of the task must be a whole number of at least 1"),
        ({"seed": "a"}, "seed of the task must be a whole number"),
        ({"patience": 0}, "patience of the task must be a whole number of at least 1"),
        ({"target": float("nan")}, "target of the task must be a finite number"),
        ({"metrics": 3}, "metrics of the task must be a tuple of names or functions"),
        ({"metrics": {"accuracy": 1}}, "metrics of the task must be a tuple"),
        ({"optimizer_options": 3}, "optimizer_options of the task must be a dict"),
        ({"augment": 3}, "augment of the task must be a function"),
        ({"model": 3}, "model of the task must be a function that returns it; received 3"),
        ({"name": 3}, "name of the task must be a string"),
        ({"monitor": 3}, "monitor of the task must be a string"),
        ({"precision": "fp8"}, "precision of the task must be one of float32, tf32, bf16; received 'fp8'"),
    ],
)
def test_a_task_refuses_values_of_a_wrong_kind(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Task(**{"model": model, "data": data, **settings})


def test_one_metric_needs_no_tuple() -> None:
    assert Task(model, data, metrics="accuracy").metrics == ("accuracy",)
    assert Task(model, data, metrics=deep).metrics == (deep,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on_nan": "go"}, "--on-nan must be one of stop, skip; received 'go'"),
        ({"log_every": 0}, "--log-every must be a whole number of at least 1"),
        ({"threads": MAX_THREADS + 1}, f"--threads must be a whole number from 1 to {MAX_THREADS}; received {MAX_THREADS + 1}"),
        ({"threads": "x"}, "--threads must be a whole number"),
        ({"local_batch": 4, "changes": {"global_batch": 8}}, "--local-batch and --global-batch both set the batch"),
        ({"out": " "}, "--out is empty; name a directory"),
        ({"monitor": "val_loss"}, "--monitor records CPU, GPU and memory; .* use --best val_loss"),
    ],
)
def test_a_run_refuses_settings_that_cannot_work(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TrainConfig("task.py", **settings)
