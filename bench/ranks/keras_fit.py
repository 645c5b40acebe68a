"""A rank that calls `model.fit`: `... SOCKET GROUP CASE DATA plain|unisono`. They differ by the scope where the model is made."""

from __future__ import annotations

import sys

from bench.ranks.keras_learning import Ends, KerasLearning, make_model


def main() -> None:
    learning = KerasLearning()
    case, rank, size, versions, actions = learning.case, 0, 1, {}, {}
    if sys.argv[5] == "unisono":
        import unisono as un  # not before, so that the plain one does not have it
        from bench.ranks.keras_copies import count_copies

        strategy = un.keras.Strategy()
        with strategy.scope():
            model = make_model(case)
        rank, size = strategy.comm.rank, strategy.comm.size
        versions = {"unisono": un.__version__, "how": strategy.comm.origin}
        actions = {"count": lambda: count_copies(learning.backend, lambda: train(1))}
    else:
        model = make_model(case)

    def train(num_epochs: int) -> list[tuple[float, float]]:
        """Callbacks run on the first worker alone, so the others do not know when an epoch was over."""
        ends = Ends()
        model.fit(learning.inputs, learning.targets, batch_size=case.global_batch, epochs=num_epochs, verbose=0, callbacks=[ends])
        return ends.at

    learning.attend(rank, size, versions, model, train, actions)


if __name__ == "__main__":
    main()
