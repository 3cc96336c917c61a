"""Runs with parameter servers: each batch is scheduled once despite worker deaths."""

from __future__ import annotations

import itertools
import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore import experiments
from featurestore.errors import InvalidArgument, RunFailed
from featurestore.experiments.run import Run
from featurestore.experiments.strategies import CALLS_PER_WORKER
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from tests.experiments.test_tensorflow_runs import ENVIRONMENT

pytestmark = pytest.mark.services

CODES = 40_000
# When worker 2 is killed behind step 7, the calls of the steps 8 to 14 have been scheduled. It may
# have computed any of them and still hold the result, or be at it: those are computed once more.
LOST_WITH_A_WORKER = CALLS_PER_WORKER * 2 - 1
# By this number of fetches those are over, whether none of them was fetched twice or all were, and
# step 25 is not reached.
LOST_RESULT = 24


def lose_a_result(number: int) -> None:
    """Drop the result of a call together with its worker."""
    import tensorflow as tf
    from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

    fetch, fetched = RemoteValueImpl.fetch, itertools.count(1)

    def fetch_or_fail(result: Any) -> Any:
        if next(fetched) == number:
            raise tf.errors.UnavailableError(None, None, "Connection reset by peer")
        return fetch(result)

    RemoteValueImpl.fetch = fetch_or_fail


def embedded(kills: dict[str, int], context: Any) -> dict[str, float]:
    """Fit an embedding and a line; kill processes after certain steps."""
    import tensorflow as tf
    import tf_keras

    if context.attempt == 1:
        lose_a_result(LOST_RESULT)
    reader = context.reader("train", global_batch_size=40)
    with context.strategy.scope():
        table = tf_keras.layers.Embedding(CODES, 8)
        head = tf_keras.layers.Dense(1)
        table.build(None)
        head.build((None, 12))
        variables = [*table.trainable_variables, *head.trainable_variables]
        optimizer = tf_keras.optimizers.SGD(0.05)
        optimizer.build(variables)
        row_count = tf.Variable(0, dtype=tf.int64)

    def train_step(batch: Any) -> Any:
        inputs = tf.stack([batch[name] for name in reader.inputs], axis=1)
        codes = tf.cast(batch["x3"] * CODES, tf.int32)
        with tf.GradientTape() as tape:
            joined = tf.concat([inputs, table(codes)], axis=1)
            loss = tf.reduce_mean((head(joined)[:, 0] - batch["y"]) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        row_count.assign_add(40)
        return loss, batch["x0"]

    objects = {"table": table, "head": head, "optimizer": optimizer, "seen": row_count}
    checkpoint = context.checkpoint(objects)
    initial_count = int(row_count.numpy())
    calls = context.schedule(train_step, epochs=2, checkpoint=checkpoint, save_every=10)
    for step, (loss, read) in calls:
        context.report(step, loss=loss)
        np.save(os.path.join(context.artifact_dir, f"{step:03d}.npy"), read)
        for process, last in kills.items():
            if context.attempt == 1 and step == last:
                worker_text = Path(
                    context.directory, "workers", f"worker-0000{process}.json"
                ).read_text()
                os.kill(json.loads(worker_text)["pid"], signal.SIGKILL)
    devices = {variable.device for variable in table.trainable_variables}
    return {"places": len(devices), "seen": row_count.numpy(), "begun_with": initial_count}


def train(sums: TrainingDataset, kills: dict[str, int], **options: Any) -> Run:
    return experiments.parameter_server(
        embedded,
        workers=2,
        servers=2,
        dataset=sums,
        params={"kills": kills},
        environment=ENVIRONMENT,
        progress=False,
        **options,
    )


def check_each_batch_was_scheduled_once(run: Any, sums: TrainingDataset) -> None:
    steps = 1600 // 40
    losses = list(run.history("loss").values())
    assert len(losses) == 2 * steps
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 10
    reader = sums.reader("train", global_batch_size=40)
    for epoch in range(2):
        for step, batch in enumerate(reader.batches(epoch)):
            path = Path(run.path, "artifacts", f"{epoch * steps + step:03d}.npy")
            np.testing.assert_array_equal(np.load(path), batch["x0"])


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_schedule_runs_each_batch_once_after_death(sums: TrainingDataset) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    run = train(sums, {"2": 7})
    assert [attempt["reason"] for attempt in run.record.attempts] == [None]
    check_each_batch_was_scheduled_once(run, sums)
    assert run.metrics["places"] == 2  # parts of the embedding on both servers
    # The result that was lost behind its computation was added twice, what the dead worker held or
    # was at may have been, and nothing else.
    assert run.metrics["seen"] in range(81 * 40, (81 + LOST_WITH_A_WORKER) * 40 + 1, 40)


@pytest.mark.soak
@pytest.mark.tensorflow
def test_server_death_restarts_from_last_checkpoint(sums: TrainingDataset) -> None:
    run = train(sums, {"2": 7, "3": 25}, retries=1)
    reasons = [attempt["reason"] for attempt in run.record.attempts]
    assert reasons == ["server 0 was lost: killed by SIGKILL", None]
    check_each_batch_was_scheduled_once(run, sums)
    twice = 1 + LOST_WITH_A_WORKER
    assert run.metrics["begun_with"] in range(20 * 40, (20 + twice) * 40 + 1, 40)
    assert run.metrics["seen"] == run.metrics["begun_with"] + 60 * 40


def fits(context: Any) -> None:
    context.reader("train", global_batch_size=40)
    context.fit(None, epochs=1)


def schedules(context: Any) -> None:
    context.reader("train", global_batch_size=40)
    context.schedule(print, epochs=1)


def test_schedule_requires_parameter_servers(
    empty_store: FeatureStore, sums: TrainingDataset
) -> None:
    with pytest.raises(InvalidArgument, match="servers=0"):
        experiments.parameter_server(fits, workers=1, servers=0, dataset=sums)
    with pytest.raises(RunFailed, match=r"context\.schedule\(\) is for runs with parameter"):
        experiments.launch(schedules, dataset=sums)
