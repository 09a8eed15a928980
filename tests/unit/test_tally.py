"""What is counted beside Prometheus arrives there, once."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from roost.api.tally import Tally, TimeTally

BOUNDS = (0.001, 0.01, 0.1)


def test_a_tally_says_what_its_counter_would() -> None:
    registry = CollectorRegistry()
    counter = Counter("things", "What happened.", registry=registry)
    tally = Tally(counter)
    tally.add()
    tally.add(4)
    assert registry.get_sample_value("things_total") == 0
    for _ in range(2):
        tally.pour()
        assert registry.get_sample_value("things_total") == 5


def test_times_say_what_their_histogram_would() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    times = TimeTally(Histogram("took", "How long.", registry=ours, buckets=BOUNDS))
    plain = Histogram("took", "How long.", registry=theirs, buckets=BOUNDS)
    draw = random.Random(1)
    for number in range(300):
        seconds = draw.choice([0.0, 0.001, 0.0010001, 0.1, 5.0, draw.random() / 64])
        times.note(seconds)
        plain.observe(seconds)
        if number % 100 == 50:
            times.pour()
    times.pour()
    times.pour()
    for name in ("took_count", *[("took_bucket", bound) for bound in ("0.001", "0.01", "0.1", "+Inf")]):
        label = {} if isinstance(name, str) else {"le": name[1]}
        sample = name if isinstance(name, str) else name[0]
        assert ours.get_sample_value(sample, label) == theirs.get_sample_value(sample, label)
    mine, wanted = ours.get_sample_value("took_sum"), theirs.get_sample_value("took_sum")
    assert mine is not None
    assert wanted is not None
    assert abs(mine - wanted) < 1e-9
    assert b"took_bucket" in generate_latest(ours)
