"""Examples and guides of keras.io, moved by making everything inside `strategy.scope()`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from bench.others.program import BEFORE, SEED, WEIGHTS, Found, Program, compiled, write_whole

SCOPE = "all inside `strategy.scope()`"
NO_DROPOUT = (r"\b(Dropout)\((?:[^()]*)\)", r"\1(0.0)")
NO_AUGMENTATION = (r"\n *layers\.Random\w+\(.*\),", "")
FIT = {"fit": {"shuffle": False, "epochs": 2}}
LIMIT = 2e-3
"""float32, of which Keras computes much on every backend; a mean of means or a wrong rate is far beyond."""
SHAPES = {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}
NUM_TRAIN, NUM_TEST = 149, 41
BACKENDS = ("torch", "tensorflow", "jax")
OWN_LOOPS = ("custom_train_step", "writing_a_custom_training_loop")
FIT_AS_IT_IS = {"fit": {"shuffle": False}}


def _program(name: str, path: str, stand_in: str, **more: Any) -> Program:
    given = {"keywords": FIT, "moved": SCOPE, "limit": LIMIT, "environment": {"KERAS_BACKEND": "torch"}, "one_folder": True, **more}
    return Program(family="keras_io", name=name, repository="keras-team/keras-io", path=path, stand_in=stand_in, **given)


def _on(backend: str, program: Program) -> Program:
    return replace(program, name=f"{program.name}, {backend}", environment={"KERAS_BACKEND": backend})


def _of_backend(backend: str, name: str) -> Program:
    edits = [(r"\b10000\b", "50")] if "loop" in name else ()
    return replace(_program(name, f"guides/{name}.py", PICTURES, edits=edits, keywords={}), environment={"KERAS_BACKEND": backend})


PICTURES = f"{NUM_TRAIN} random pictures"
REVIEWS = f"{NUM_TRAIN} random reviews of 20 words"
SHORT_TEXT = ((r"\b20000\b", "500"), (r"\b200\b", "20"))
MNIST = _program("mnist_convnet", "examples/vision/mnist_convnet.py", PICTURES, edits=[NO_DROPOUT])
LSTM = _program("bidirectional_lstm_imdb", "examples/nlp/bidirectional_lstm_imdb.py", REVIEWS, edits=SHORT_TEXT)
TRANSFORMER = _program(
    "text_classification_with_transformer",
    "examples/nlp/text_classification_with_transformer.py",
    REVIEWS,
    edits=[*SHORT_TEXT, NO_DROPOUT],
)
FRAUD = _program(
    "imbalanced_classification",
    "examples/structured_data/imbalanced_classification.py",
    f"a table of {NUM_TRAIN} random rows of 30 columns, a tenth of them frauds",
    edits=[NO_DROPOUT, (r'"/Users/\S*"', '"creditcard.csv"'), (r"batch_size=2048", "batch_size=32")],
    moved=f"{SCOPE}. Not compared are four counts in which Keras on torch reports those of the validation data as of training",
    not_compared=r"fit 0: [ft][np]$",
)
CALLBACKS = _program(
    "writing_your_own_callbacks",
    "guides/writing_your_own_callbacks.py",
    PICTURES,
    edits=[(r"\b1000\b", "100")],
    keywords=FIT_AS_IT_IS,
)
SERIES = _program(
    "timeseries_classification_from_scratch",
    "examples/timeseries/timeseries_classification_from_scratch.py",
    f"{NUM_TRAIN} random series of 500 numbers",
    edits=[(r"(?m)^root_url = .*", 'root_url = ""'), (r"keras\.utils\.plot_model\(.*\)", "")],
)
DISTILLATION = _program(
    "knowledge_distillation",
    "examples/vision/knowledge_distillation.py",
    PICTURES,
    edits=[(r"\b(256|512), \(3", "16, (3")],
)
SIAMESE = _program(
    "siamese_contrastive",
    "examples/vision/siamese_contrastive.py",
    PICTURES,
    edits=[(r"\b30000\b", "100"), (r"ops\.concatenate\((.*), axis=1\)", r"np.concatenate(\1, axis=1)")],
)
BUILT = (r"(?m)^(distiller\.fit\()", r"distiller.build(x_train.shape)\n\1")
WITH_INPUT = (r"(model = keras\.Sequential\(\))\n", r"\1; model.add(keras.Input((784,)))\n")
ONE_EACH = (r"return ops\.mean\((ops\.equal\(.*\))\)", r"return \1")
WITHOUT_NORM = (r"layers\.BatchNormalization\(\)", 'layers.Activation("linear")')

ON_ALL_BACKENDS = (MNIST, LSTM, TRANSFORMER, replace(FRAUD, not_compared="", moved=SCOPE), SERIES)

PROGRAMS = [
    MNIST,
    _program("antirectifier", "examples/keras_recipes/antirectifier.py", PICTURES, edits=[NO_DROPOUT]),
    _program(
        "addition_rnn",
        "examples/nlp/addition_rnn.py",
        "its own sums, 200 of them",
        edits=[(r"\b50000\b", "200"), (r"epochs = 30", "epochs = 3"), (r"LSTM\(128", "LSTM(16")],
        keywords=FIT_AS_IT_IS,
    ),
    LSTM,
    TRANSFORMER,
    _program(
        "mlp_image_classification",
        "examples/vision/mlp_image_classification.py",
        PICTURES,
        edits=[
            NO_DROPOUT,
            NO_AUGMENTATION,
            (r"(?m)^image_size = 64", "image_size = 16"),
            (r"(?m)^embedding_dim = 256", "embedding_dim = 16"),
            (r"(?m)^num_blocks = 4", "num_blocks = 1"),
            (r"(?m)^dropout_rate = 0\.2", "dropout_rate = 0.0"),
        ],
    ),
    FRAUD,
    CALLBACKS,
    replace(
        CALLBACKS,
        name="writing_your_own_callbacks, built",
        moved=f"{SCOPE}; the model begins with its input; `evaluate` and `predict` without callbacks",
        edits=[*CALLBACKS.edits, WITH_INPUT, (r"(?s)((?:evaluate|predict)\([^()]*?),\s*callbacks=\[\w+\(\)\],?", r"\1")],
    ),
    SERIES,
    replace(
        SERIES,
        name="timeseries_classification, no batch-norm",
        moved=f"{SCOPE}; in both runs without batch-norm",
        edits=[*SERIES.edits, WITHOUT_NORM],
    ),
    DISTILLATION,
    replace(DISTILLATION, name="knowledge_distillation, built", moved=f"{SCOPE}; the model is built before `fit`", move=[BUILT]),
    SIAMESE,
    replace(
        SIAMESE,
        name="siamese_contrastive, accuracy of each sample",
        moved=f"{SCOPE}; its metric returns one value for each sample; in both runs fixed scales in the place of batch-norm",
        edits=[*SIAMESE.edits, ONE_EACH, (WITHOUT_NORM[0], "layers.Rescaling(0.02)")],
    ),
    *(_of_backend(backend, f"{kind}_in_{backend}") for backend in BACKENDS for kind in OWN_LOOPS),
    *(
        _on(backend, one)
        for backend in BACKENDS[1:]
        for one in (MNIST, LSTM, TRANSFORMER, replace(FRAUD, not_compared="", moved=SCOPE), SERIES)
    ),
]


def run(program: Program, texts: dict[str, str], is_moved: bool) -> Found:
    """Collective when moved, blocking: histories, results of `evaluate` and `predict`, and the weights of all fitted models."""
    prepare_keras()
    found: Found = {}
    names = {"__name__": "__main__", "recorded": recorder(found)}
    with recorded_fits(found, note_start=not is_moved), embeddings_as_tensors(not is_moved), scope(is_moved):
        exec(compiled(program, next(iter(texts.values())), ("evaluate", "predict")), names)
    return found


def prepare_keras() -> None:
    """Local: puts data of the same shapes in the place of those that Keras would download, and writes files that programs read."""
    import keras
    import matplotlib

    matplotlib.use("agg")

    def pictures(shape: tuple[int, ...]) -> Any:
        random = np.random.default_rng(0)
        parts = (NUM_TRAIN, NUM_TEST)
        classes = np.arange(NUM_TRAIN) % 10  # every class is there
        return lambda *_, **__: tuple(
            (random.integers(0, 256, (n, *shape), np.uint8), random.permutation(classes[:n])) for n in parts
        )

    for name, shape in SHAPES.items():
        getattr(keras.datasets, name).load_data = pictures(shape)

    def reviews(num_words: int, **_: Any) -> Any:
        random = np.random.default_rng(0)
        return tuple(
            (list(random.integers(1, num_words, (n, 20)).tolist()), random.integers(0, 2, n)) for n in (NUM_TRAIN, NUM_TEST)
        )

    keras.datasets.imdb.load_data = reviews
    random = np.random.default_rng(0)
    rows = [[*random.random(30), f'"{int(number % 10 == 0)}"'] for number in range(NUM_TRAIN)]
    write_whole("creditcard.csv", "".join(",".join(map(str, row)) + "\n" for row in [["column"] * 31, *rows]))
    for part, num in (("TRAIN", NUM_TRAIN), ("TEST", NUM_TEST)):
        series = [[1 if number % 2 else -1, *random.standard_normal(500)] for number in range(num)]
        write_whole(f"FordA_{part}.tsv", "".join("\t".join(map(str, row)) + "\n" for row in series))


@contextmanager
def scope(is_moved: bool) -> Iterator[None]:
    """Collective when moved: the scope of a strategy, or the same seeds without one."""
    if is_moved:
        import unisono as un

        with un.keras.Strategy(seed=SEED).scope():
            yield
        return
    import random

    import torch

    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(SEED)
    yield


@contextmanager
def embeddings_as_tensors(is_on: bool) -> Iterator[None]:
    """Local: the gradients of embeddings as whole tensors. On TensorFlow Keras's Adam squares the gradient of each occurrence of a
    word by itself, and not their sum as on its other backends."""
    import keras

    optimizer: Any = keras.optimizers.Optimizer
    before = optimizer.apply

    def apply(self: Any, gradients: Any, variables: Any = None) -> Any:
        import tensorflow as tf

        whole = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in gradients]
        return before(self, whole, variables)

    if is_on and keras.backend.backend() == "tensorflow":
        optimizer.apply = apply
    try:
        yield
    finally:
        optimizer.apply = before


@contextmanager
def recorded_fits(found: Found, note_start: bool) -> Iterator[None]:
    """Local: notes the history of every `fit` as it ends, and the weights at its start and at the end of the program."""
    from keras.callbacks import History

    made: list[Any] = []
    before = History.__init__

    def begin(history: Any) -> None:
        before(history)
        made.append(history)

    def start(history: Any, logs: Any = None) -> None:
        starting(history, logs)
        if note_start:
            number = next(place for place, one in enumerate(made) if one is history)
            found.update({f"{BEFORE} {number}.{place}": one.copy() for place, one in enumerate(history.model.get_weights())})

    starting = History.on_train_begin
    History.__init__, History.on_train_begin = begin, start
    try:
        yield
    finally:
        History.__init__, History.on_train_begin = before, starting
    for number, history in enumerate(made):
        found.update({f"fit {number}: {name}": np.asarray(one, np.float64) for name, one in history.history.items()})
        found.update({f"{WEIGHTS} {number}.{place}": one for place, one in enumerate(history.model.get_weights())})


def recorder(found: Found) -> Any:
    """Pure: a function that notes what it is given and returns it."""

    def recorded(value: Any) -> Any:
        number = sum(name.startswith("result ") for name in found)
        if value is not None:
            found[f"result {number}"] = np.concatenate([np.ravel(np.asarray(one, np.float64)) for one in np.atleast_1d(value)])
        return value

    return recorded
