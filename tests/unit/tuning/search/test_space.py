"""The space of a search: from annotations and from a file; whatever cannot be is refused with one message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

import unisono as un
from unisono.errors import UsageError
from unisono.tuning.search.search import Search
from unisono.tuning.search.space import Dimension, Space, defaults_of, space_from_dict, space_of


def model(
    width: Annotated[int, un.Range(16, 256, log=True)] = 64,
    act: Annotated[str, un.Choice("relu", "tanh")] = "relu",
    depth: int = 2,
    rate: float = 0.1,
) -> Any:
    return width, act, depth, rate


def data(size: Annotated[int, un.Range(1, 9)] = 3) -> Any:
    return size


TASK = un.Task(model=model, data=data, optimizer="sgd")


def read(tmp_path: Path, text: str) -> Space:
    file = tmp_path / "space.toml"
    file.write_text(text)
    return space_of(TASK, file)


def test_annotations_are_dimensions() -> None:
    found = {one.name: one for one in space_of(TASK).dimensions}
    assert set(found) == {"model.width", "model.act", "data.size"}
    assert found["model.width"].is_integer and str(found["model.width"]) == "model.width: 16 to 256, on a log scale"
    assert found["model.act"].contains("tanh") and not found["model.act"].contains("gelu")
    assert found["data.size"].contains(9) and not found["data.size"].contains(2.5) and not found["data.size"].contains(10)


def test_a_file_adds_changes_and_takes_away(tmp_path: Path) -> None:
    space = read(
        tmp_path,
        """
        [lr]
        low = 1e-3
        high = 1
        log = true
        [global_batch]
        choice = [32, 64]
        [optimizer.momentum]
        low = 0
        high = 0.99
        when = { optimizer = "sgd" }
        [optimizer]
        choice = ["sgd", "adam"]
        [model.width]
        low = 8
        high = 32
        [model.depth]
        low = 1
        high = 3
        [model.rate]
        low = 0
        high = 1
        [algorithm]
        choice = ["allreduce", "local_sgd"]
        [algorithm.period]
        low = 1
        high = 8
        when = { algorithm = ["local_sgd"] }
        ["data.size"]
        fixed = 4
        """,
    )
    found = {one.name: one for one in space.dimensions}
    assert space.fixed == {"data.size": 4} and "data.size" not in found
    assert [found[name].is_integer for name in ("model.width", "model.depth", "model.rate", "lr", "algorithm.period")] == [
        *(True, True, False, False, True)
    ]
    names = list(found)
    assert names.index("optimizer") < names.index("optimizer.momentum")
    momentum = found["optimizer.momentum"]
    assert space.is_active(momentum, {"optimizer": "sgd"}) and not space.is_active(momentum, {"optimizer": "adam"})
    assert not space.is_active(momentum, {})
    assert space.to_dict() == read(tmp_path, (tmp_path / "space.toml").read_text()).to_dict()


REFUSED = {
    "[model.widht]\nlow=1\nhigh=2": "did you mean 'model.width'",
    "[nonsense]\nchoice=[1]": "nonsense",
    "[lr]\nlow=1.0\nhigh=1.0": "lr in .*space.toml: a Range needs low < high; received 1.0 and 1.0",
    "[lr]\nlow=0\nhigh=1\nlog=true": "needs low < high above 0",
    "[lr]\nlow=0.1": "needs low and high, or choice, or fixed",
    "[lr]\nlow='a'\nhigh=1": "low of lr in .* must be a number; received 'a'",
    "[lr]\nlow=0.1\nhihg=1": "hihg",
    "[lr]\nchoice=[]": "at least one value",
    "[lr]\nchoice=[1]\nlow=2": "has choice and also low, high or log",
    "[lr]\nfixed=1\nlow=2": "has fixed and other keys",
    "[model.act]\nnone=true\nchoice=['relu']": "has none and other keys",
    "[model.act]\nnone='yes'": "none of model.act in .* must be true, which fixes it to None; received 'yes'",
    "[lr]": r"\[lr\] in the space .* is empty",
    "lr=3": r"lr = 3 in the space .* is not a dimension; write \[lr\]",
    "[lr": "is not valid TOML",
    "[algorithm]\nchoice=['allreduce', 'alreduce']": "--algorithm must be one of .*; received 'alreduce'",
    "[lr]\nlow=-1\nhigh=1": "--lr must be a finite number above 0; received -1",
    "[lr]\nlow=0.1\nhigh=1\nwhen={depth=3}": "lr depends on depth .*, which is not another dimension",
    "[lr]\nlow=0.1\nhigh=1\nwhen={'model.act'='gelu'}": "depends on model.act being 'gelu' .*, which it cannot be",
    "[lr]\nchoice=[1]\nwhen={global_batch=1}\n[global_batch]\nchoice=[1]\nwhen={lr=1}": "in a circle .*lr -> global_batch -> lr",
    "[lr]\nlow=0.1\nhigh=1\nwhen='sgd'": "when of lr in .* must name other dimensions",
    "[lr]\nlow=0.1\nhigh=1\nwhen={model={act='gelu'}}": "depends on model.act being 'gelu' .*, which it cannot be",
    "[lr]\nlow=0.1\nhigh=1\nwhen={'model.act'=[]}": "lr can never be active",
    "[lr]\nlow=0.1\nhigh=1\nwhen={epochs=2}\n[epochs]\nfixed=3": "lr can never be active",
    "[lr]\nlow=0.1\nhigh=inf": "a Range needs low < high",
    "[lr]\nlow=0.1\nhigh=1\nlog='false'": "log of lr in .* must be true or false; received 'false'",
    "[epochs]\nlow=0.5\nhigh=3": "epochs takes whole numbers, and its range is 0.5 to 3; give whole numbers",
    "[lr]\nchoice=[1]\n['lr']\nchoice=[2]": "is not valid TOML",
    "[data.size]\nchoice=[1]\n['data.size']\nchoice=[2]": "data.size in .* is given twice",
    "[lr]\nchoice=[[1, 2]]": "it is not a text, a number",
    "[data_seed]\nchoice=[0, 1]": "trials are compared on the same data, so data_seed cannot be searched",
    "[global_batch]\nchoice=['many']": "global_batch|--global-batch",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_searched_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=REFUSED[text]):
        read(tmp_path, text)


def test_arguments_without_a_default_are_given_by_the_space() -> None:
    def needs(width: Annotated[int, un.Range(1, 4)], depth: Annotated[int | None, un.Range(1, 2)]) -> Any:
        return width, depth

    found = space_of(un.Task(model=needs, data=data)).dimensions
    assert [(one.name, one.is_integer) for one in found] == [("model.width", True), ("model.depth", True), ("data.size", True)]


def test_an_empty_space_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    plain = un.Task(model=lambda: None, data=lambda: None)
    with pytest.raises(UsageError, match="there is nothing to search: annotate"):
        space_of(plain)
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml \(--space\): No such file"):
        space_of(plain, tmp_path / "none.toml")


WHOLE = """
    [lr]
    low = 1e-3
    high = 1
    log = true
    [optimizer]
    choice = ["sgd", "adam"]
    [optimizer.momentum]
    low = 0
    high = 0.99
    when = { optimizer = "sgd" }
    [epochs]
    low = 1
    high = 9
    when = { optimizer = ["sgd", "adam"], algorithm = "allreduce" }
    [algorithm]
    choice = ["allreduce", "local_sgd"]
    [model.depth]
    choice = [1, 2]
    ["data.size"]
    fixed = 4
    """


def test_a_space_comes_back_from_its_description(tmp_path: Path) -> None:
    space = read(tmp_path, WHOLE)
    back = space_from_dict(json.loads(json.dumps(space.to_dict())))
    assert back.to_dict() == space.to_dict()
    assert [str(one) for one in back.dimensions] == [str(one) for one in space.dimensions]
    assert [one.is_integer for one in back.dimensions] == [one.is_integer for one in space.dimensions]
    assert [one.boundary_values() for one in back.dimensions] == [one.boundary_values() for one in space.dimensions]
    assert [list(map(type, one.boundary_values())) for one in back.dimensions] == [
        list(map(type, one.boundary_values())) for one in space.dimensions
    ]
    for values in ({"optimizer": "sgd", "algorithm": "allreduce"}, {"optimizer": "adam"}, {}):
        meant = [[one.name for one in which.dimensions if which.is_active(one, values)] for which in (space, back)]
        assert meant[0] == meant[1]


DEFAULTS: Mapping[str, tuple[Mapping[str, Any], str, Mapping[str, Any], Mapping[str, Any]]] = {
    "arguments and options": (
        {"lr": 0.5, "optimizer": "sgd", "optimizer_options": {"momentum": 0.9}},
        WHOLE,
        {},
        {
            "model.width": 64,
            "model.act": "relu",
            "model.depth": 2,
            "lr": 0.5,
            "optimizer": "sgd",
            "optimizer.momentum": 0.9,
            "algorithm": "allreduce",
            "epochs": 1,
        },
    ),
    "a condition that does not hold": (
        {"lr": 0.5, "optimizer": "adam", "optimizer_options": {"momentum": 0.9}},
        "[optimizer]\nchoice=['sgd','adam']\n[optimizer.momentum]\nlow=0\nhigh=0.99\nwhen={optimizer='sgd'}",
        {},
        {"model.width": 64, "model.act": "relu", "data.size": 3, "optimizer": "adam"},
    ),
    "a condition on what is fixed": (
        {"optimizer_options": {"momentum": 0.5}},
        "[optimizer.momentum]\nlow=0\nhigh=0.99\nwhen={optimizer='sgd'}\n[optimizer]\nfixed='sgd'",
        {"optimizer": "sgd"},
        {"model.width": 64, "model.act": "relu", "data.size": 3, "optimizer.momentum": 0.5},
    ),
    "outside of the space": (
        {"lr": 5.0},
        "[lr]\nlow=0.1\nhigh=1\n[model.width]\nlow=100\nhigh=200\n[model.act]\nchoice=['tanh']\n[data.size]\nlow=1\nhigh=2",
        {},
        {},
    ),
    "nothing said": (
        {"lr": None, "optimizer": None},
        "[lr]\nlow=0.1\nhigh=1",
        {},
        {"model.width": 64, "model.act": "relu", "data.size": 3},
    ),
    "a whole number for a real one": (
        {},
        "[model.rate]\nlow=0\nhigh=1",
        {},
        {"model.width": 64, "model.act": "relu", "data.size": 3, "model.rate": 0.1},
    ),
}


@pytest.mark.parametrize("what", DEFAULTS)
def test_what_the_task_itself_says_lies_first(tmp_path: Path, what: str) -> None:
    settings, text, fixed, expected = DEFAULTS[what]

    def other(
        width: Annotated[int, un.Range(16, 256, log=True)] = 64,
        act: Annotated[str, un.Choice("relu", "tanh")] = "relu",
        depth: int = 2,
        rate: float = 0.1,
    ) -> Any:
        return width, act, depth, rate

    task = un.Task(**{"model": other, "data": data, **settings})
    file = tmp_path / "space.toml"
    file.write_text(text)
    space = space_of(task, file)
    found = defaults_of(task, space, fixed)
    assert found == expected
    for dimension in space.dimensions:
        if dimension.name in found:
            assert dimension.contains(found[dimension.name])
            assert Space(space.dimensions, fixed).is_active(dimension, found)


def test_whole_dimensions_have_whole_defaults() -> None:
    def other(width: Annotated[int, un.Range(1, 9)] = 3.0) -> Any:  # type: ignore[assignment]
        return width

    task = un.Task(model=other, data=data)
    found = defaults_of(task, space_of(task), {})
    assert found["model.width"] == 3 and type(found["model.width"]) is int


def unannotated(rate=0.5, depth=2, noise: Annotated[Any, un.Range(0, 2)] = 1.0) -> Any:  # type: ignore[no-untyped-def]
    return rate, depth, noise


def test_a_range_is_of_real_numbers_where_the_default_or_what_takes_it_says_so() -> None:
    """Optimisers, schedules and algorithms say so by their annotations."""
    ends = ("model.rate", "model.depth", "optimizer.momentum", "schedule.final_factor", "loss.label_smoothing", "algorithm.period")
    task = un.Task(
        model=unannotated,
        data=data,
        loss="cross_entropy",
        schedule="cosine",
        space={**dict.fromkeys(ends, un.Range(0, 1)), "algorithm.period": un.Range(1, 2), "algorithm": un.Choice("local_sgd")},
    )
    space = space_of(task)
    whole = {one.name for one in space.dimensions if one.is_integer}
    assert whole == {"model.depth", "data.size", "algorithm.period"}
    search = Search(space, "random", [False], seed=1)
    drawn = [search.propose().values for _ in range(50)]
    for name in ends[:1] + ends[2:5]:
        assert len({values[name] for values in drawn}) == 50 and all(0 <= values[name] <= 1 for values in drawn), name
    assert {values["model.depth"] for values in drawn} == {0, 1}


OPTIMIZERS = {None: torch.optim.SGD, "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


@pytest.mark.parametrize("is_searched", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_trial_has_the_optimizers_own_options(name: str | None, is_searched: bool) -> None:
    """Those that the task leaves out are as torch makes them."""
    made = OPTIMIZERS[name]([torch.zeros(1)]).defaults
    own = {f"optimizer.{key}": made[key] for key in ("momentum", "weight_decay", "eps", "alpha") if key in made}
    dimensions = [Dimension(option, un.Range(0, 1)) for option in own]
    if is_searched:
        dimensions.insert(0, Dimension("optimizer", un.Choice("adagrad", "sgd", "adam", "rmsprop")))
        own["optimizer"] = name or "sgd"
    assert defaults_of(un.Task(model=model, data=data, optimizer=name), Space(dimensions), {}) == own


def test_a_task_may_say_its_space() -> None:
    task = un.Task(
        model=model,
        data=data,
        space={
            "lr": un.Range(0.001, 1, log=True),
            "optimizer.momentum": un.Range(0, 0.99, when={"optimizer": ("sgd", "adam")}),
            "optimizer": un.Choice("sgd", "adam"),
            "model.depth": un.Range(1, 4),
        },
    )
    space = space_of(task)
    found = {one.name: one for one in space.dimensions}
    assert set(found) == {"model.width", "model.act", "data.size", "lr", "optimizer", "optimizer.momentum", "model.depth"}
    assert found["optimizer.momentum"].when == {"optimizer": ["sgd", "adam"]} and found["model.depth"].is_integer
    assert not found["lr"].is_integer
    names = list(found)
    assert names.index("optimizer") < names.index("optimizer.momentum")
    assert space_from_dict(json.loads(json.dumps(space.to_dict()))).to_dict() == space.to_dict()


def test_a_dimension_of_a_file_may_be_called_like_a_key(tmp_path: Path) -> None:
    def other(log: bool = True, when: int = 3) -> Any:
        return log, when

    file = tmp_path / "space.toml"
    file.write_text("[model.log]\nchoice = [true, false]\n['model.when']\nlow = 1\nhigh = 9")
    found = {one.name: one for one in space_of(un.Task(model=other, data=data), file).dimensions}
    assert found["model.log"].contains(False) and found["model.when"].is_integer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[lr]\nlow = 0.1\nhigh = 1", 10),
        ("[epochs]\nlow = 2\nhigh = 40", 40),
        ("[epochs]\nchoice = [30, 5, 7]", 30),
        ("[optimizer]\nchoice = ['sgd', 'adam']\n[epochs]\nlow = 2\nhigh = 4\nwhen = { optimizer = 'sgd' }", 10),
    ],
    ids=["not searched", "range", "choice", "with a condition"],
)
def test_the_most_epochs_that_a_trial_may_have(tmp_path: Path, text: str, expected: int) -> None:
    (tmp_path / "space.toml").write_text(text)
    assert space_of(TASK, tmp_path / "space.toml").largest("epochs", 10) == expected


def test_conditions_see_what_is_given_by_set(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("[optimizer.momentum]\nlow = 0.0\nhigh = 0.9\nwhen = { optimizer = 'sgd' }")
    with pytest.raises(UsageError, match=r"depends on optimizer \(when\), which is not another dimension"):
        space_of(TASK, file)
    found = space_of(TASK, file, {"optimizer": "sgd"})
    momentum = next(one for one in found.dimensions if one.name == "optimizer.momentum")
    assert found.is_active(momentum, {}) and "optimizer" not in found.fixed
    assert space_from_dict(found.to_dict()) == found, "a search knows it without what was given"
    with pytest.raises(UsageError, match=r"optimizer.momentum can never be active: it depends on optimizer being one of \['sgd'\]"):
        space_of(TASK, file, {"optimizer": "adam"})
