"""A store that is away for a while, and a server that is killed in the middle of its work."""

from __future__ import annotations

import threading

import msgspec
import psycopg
import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.verbs.machines import AddMachines
from roost.agent.verbs.place import PlaceVMs
from roost.bench.postgres import ThrowawayPostgres
from roost.model.errors import StoreUnavailable
from roost.model.inventory import machine_specs
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.ledger import Ledger
from roost.store.memory import MemoryStore
from roost.wiring import open_store


def test_an_agent_that_has_to_load_anew_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a machine was added and then the database went away."""
    zone = Zone.synthetic(100)
    store = open_store("memory:", create=zone)
    agent = Agent(store, InlineCourier(store), Policy.default())
    tries = 0
    load = MemoryStore.load

    def away_at_first(self: MemoryStore) -> Ledger:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise StoreUnavailable("away")
        return load(self)

    monkeypatch.setattr(MemoryStore, "load", away_at_first)
    added = agent.submit(AddMachines((msgspec.structs.replace(machine_specs(zone, [0])[0], name="new"),)))
    placed = agent.submit(PlaceVMs(Request("web", (VM("A1"),))))
    assert [answer.status for answer in agent.run(added, placed)] == ["done", "done"]
    later = agent.submit(PlaceVMs(Request("shop", (VM("A1"),))))
    assert [answer.status for answer in agent.run(later)] == ["done"]
    assert tries > 3
    assert "new" in agent.replica.allocator.zone.machine_names
    agent.check_invariants()


def test_a_killed_server_leaves_nobody_behind_and_can_be_started_again_at_once() -> None:
    """Also if it was busy: a process that lives on would finish what a power cut would have cut off."""
    with ThrowawayPostgres() as server:
        connection = psycopg.connect(server.url, autocommit=True)
        began = threading.Event()
        connection.add_notice_handler(lambda _: began.set())
        busy = "DO $$ BEGIN RAISE NOTICE 'now'; PERFORM count(*) FROM generate_series(1, 50000000); END $$"
        ended: list[psycopg.Error] = []

        def keep_busy() -> None:
            try:
                connection.execute(busy)
            except psycopg.Error as error:
                ended.append(error)

        thread = threading.Thread(target=keep_busy)
        thread.start()
        assert began.wait(30.0)
        try:
            server.kill()
            server.start()
        finally:
            thread.join()
            connection.close()
        (error,) = ended
        assert isinstance(error, psycopg.OperationalError)
        with psycopg.connect(server.url) as again:
            assert again.execute("SELECT 1").fetchone() == (1,)
