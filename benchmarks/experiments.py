"""Searches: what a second worker gains, and what a trial costs beside its training.

python benchmarks/experiments.py [--quick]

40 trials that sleep for a second are run by one worker and by two, from the call to its return
with all processes started and ended. Both searches have the same seed and the same sampler; the
trials of one and the other are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import featurestore
from featurestore import experiments


def sleeping(x: float, seconds: float) -> dict[str, float]:
    import time

    time.sleep(seconds)
    return {"y": -((x - 0.3) ** 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter trials")
    arguments = parser.parse_args()
    seconds = 0.5 if arguments.quick else 1.0
    took, found = {}, {}
    with tempfile.TemporaryDirectory() as place:
        featurestore.connect(Path(place) / "store")
        for parallel in (1, 2):
            start = time.perf_counter()
            study = experiments.search(
                sleeping,
                space={"x": experiments.uniform(0, 1)},
                params={"seconds": seconds},
                metric="y",
                sampler="random",
                trials=40,
                parallel=parallel,
                progress=False,
            )
            took[parallel] = time.perf_counter() - start
            found[parallel] = sorted(run.params["x"] for run in study.runs)
            print(f"{parallel} worker(s): 40 trials in {took[parallel]:.1f} s", flush=True)
    if found[1] != found[2]:
        raise SystemExit("one worker and two tried different parameters")
    share = took[2] / took[1]
    cost = (took[1] - 40 * seconds) / 40 * 1000
    print(f"two workers take {share:.3f} of the time of one (limit 0.55)")
    print(f"a trial costs {cost:.0f} ms beside its training, starts included")
    return 0 if share <= 0.55 else 1


if __name__ == "__main__":
    sys.exit(main())
