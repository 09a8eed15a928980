"""Opening a store and loading its zone, with all that takes long told as it is begun."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import structlog

from roost.agent.agent import Agent, Loaded
from roost.agent.settings import AgentSettings, seed_of
from roost.agent.warm_up import sample_of, warm_up
from roost.api.policies import OF_POLICIES, PolicyBook
from roost.api.switching import PolicySwitch
from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput, StoreUnavailable
from roost.settings import Settings
from roost.store.columns import ZoneColumns
from roost.store.contract import Store
from roost.wire.policies import Active
from roost.wiring import ensure_store, open_agent, open_store

log = structlog.get_logger()


class Opening:
    """Opens one service's store."""

    def __init__(
        self,
        settings: Settings,
        place: int,
        switch: PolicySwitch,
        do: Callable[[str], None],
        poke: Callable[[], None],
        execute: Callable[[Callable[[], None]], object],
    ) -> None:
        """`do` hears what is begun; `poke`: there is something for the agent to do; `execute`: in another thread."""
        self._settings, self._place, self._switch = settings, place, switch
        self._do, self._poke, self._execute = do, poke, execute

    def open(self) -> tuple[Store, Agent, Active | None]:
        """The store, an agent with the zone loaded, and what was activated then."""
        settings = self._settings
        self._do("opening the store")
        ensure_store(settings.store.url, settings.store.zone, self._do)  # a database that was away may be empty
        store = open_store(settings.store.url)
        try:
            book = PolicyBook(_policies_of(store), self._switch.own, self._switch.rules)
            return store, self._agent(store, book), book.in_force
        except BaseException:
            store.close()
            raise

    def _agent(self, store: Store, book: PolicyBook) -> Agent:
        """One that decides as the registry says, or if that does not work here as the settings do."""
        own = self._switch.own
        try:
            agent = self._agent_by(store, book.split(own))
            self._switch.unusable = self._switch.told_otherwise(book)
            return agent
        except InvalidInput as error:
            if book.in_force is None:
                raise  # there is nothing else to decide by
            self._switch.cannot_use(book.in_force, error, own.name)
            return self._agent_by(store, PolicySplit(own))

    def _agent_by(self, store: Store, split: PolicySplit) -> Agent:
        given = self._settings.agent

        def prepare(loaded: ZoneColumns) -> None:
            """Nobody's first request is to wait for a compiler."""
            sample = sample_of(loaded)
            for policy in split.policies:
                self._do(f"compiling the rules of {policy.name}")
                warm_up(sample, policy)
            self._do(f"loading {len(loaded.machines.spec):,} machines and {len(loaded.vms.name):,} VMs")

        self._do("reading the zone")
        return open_agent(
            store,
            split,
            seed=seed_of(given, self._place),
            settings=AgentSettings.of(given),
            patience=self._settings.store.patience_seconds,
            notify=self._poke,
            background=self._in_background,
            prepare=prepare,
        )

    def _in_background(self, load: Callable[[], Loaded]) -> Future[Loaded]:
        loading: Future[Loaded] = Future()

        def run() -> None:
            try:
                loading.set_result(load())
            except StoreUnavailable as error:
                loading.set_exception(error)  # it will be tried again
            except BaseException as error:
                log.exception("the zone could not be loaded anew")
                loading.set_exception(StoreUnavailable(f"it cannot be loaded: {error!r}"))
            self._poke()

        self._execute(run)
        return loading


def _policies_of(store: Store) -> dict[tuple[str, str], str]:
    """What a registry says of policies, before there is an agent that follows it."""
    return {(kind, name): value for kind in OF_POLICIES for name, value in store.registry(kind).items()}
