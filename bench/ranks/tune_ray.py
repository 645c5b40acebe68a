"""Ray Tune with Optuna's sampler: an actor for each of the trials that run at the same time, used again for the next ones."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.ranks.tune_trial import RATE, WIDTH, Order, X, worth


def main() -> None:
    order = Order.given()
    order.tell_versions("ray", "optuna")
    ray: Any = importlib.import_module("ray")  # lives in an environment of its own
    tune: Any = importlib.import_module("ray.tune")
    search: Any = importlib.import_module("ray.tune.search.optuna")

    def trial(config: dict[str, Any]) -> dict[str, float]:
        order.wait()
        return {"loss": worth(config["x"], config["rate"], config["width"])}

    ray.init(num_cpus=order.num_workers, include_dashboard=False, log_to_driver=False)
    try:
        results = tune.Tuner(
            trial,
            param_space={"x": tune.uniform(*X), "rate": tune.loguniform(*RATE), "width": tune.randint(WIDTH[0], WIDTH[1] + 1)},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=search.OptunaSearch(sampler=order.sampler()),
                num_samples=order.num_trials,
                max_concurrent_trials=order.num_workers,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(storage_path=str(Path(order.folder) / "results"), verbose=0),
        ).fit()
        assert len(results) == order.num_trials and not results.num_errors
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
