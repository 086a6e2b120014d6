"""The endpoint of a judge: its address and key, its price, its limits, its cap and its cassette."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Self

from orchestra.accounting.budget import Budget
from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import World
from orchestra.errors import ConfigError
from orchestra.system.environment import required
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.entry import Entry, own_temperature
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.rate_limits import LimitParameter, ProviderLimits, RateLimiter, limiter_of
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Component, Price

URL, KEY = "ORCHESTRA_JUDGE_URL", "ORCHESTRA_JUDGE_KEY"
"""Environment variables of the judge: its address up to `/v1`, and its key where it needs one."""
SETTING = "world.judge.settings"
"""What leaves a parameter out of the requests to a judge; a command's judge has those of world.judge, by its name."""
REASONING = re.compile(r"(.*/)?(o\d|gpt-([5-9]|[12]\d)(?![\d.]*-chat))")
"""Names of OpenAI's reasoning models: o1 and later, GPT-5 and later without the chat models. They refuse a
temperature; of others, settings or entries say so."""


@dataclass(frozen=True)
class JudgeEndpoint:
    """The model that judges, at its price of a day."""

    settings: JudgeSettings
    price: Price
    providers: Mapping[str, ProviderLimits] = field(default_factory=dict)
    """The catalogue's: the experts of the judge's provider are asked within the same limits."""
    own_temperature: bool = False
    """Whether the catalogue's entries of the judge's row say that it may refuse another; then it is sent none."""

    @classmethod
    def of(cls, settings: JudgeSettings, world: World, root: Path) -> Self:
        """At its price of `world.price_date`; raises `ConfigError`."""
        price = PriceBook.load(root / world.prices).at(settings.price, date.fromisoformat(world.price_date))
        file = read_catalogue(root / world.catalogue)
        return cls.among(settings, price, file.providers, file.tools)

    @classmethod
    def among(
        cls,
        settings: JudgeSettings,
        price: Price,
        providers: Mapping[str, ProviderLimits],
        tools: Mapping[str, Entry],
    ) -> Self:
        """At this price, asked as the catalogue's entries of its provider and its row are."""
        return cls(settings, price, providers, own_temperature(settings.price, tools))

    @property
    def provider(self) -> RateLimiter:
        """Whose limits its requests keep, with the experts of the same provider."""
        return limiter_of(self.settings.price, self.providers)

    @property
    def limit_parameter(self) -> LimitParameter:
        """How its provider names the output limit."""
        return self.provider.limits.limit_parameter

    @property
    def over(self) -> dict[str, Any]:
        """What holds over the settings of every request to it; null: not sent."""
        refuses = self.own_temperature or REASONING.match(self.settings.model) is not None
        return ({"temperature": None} if refuses else {}) | self.settings.settings

    def chat(self, budget: Budget | None, cassette: Cassette | None) -> PaidChat:
        """The judge under the budget's cap; a replay needs neither address nor key. Raises `ConfigError`."""
        model = self.settings.model
        if budget is None:
            raise ConfigError("nothing books what it spends", where=f"judge {model}", fix="open a budget")
        replay = cassette is not None and cassette.mode == "replay"
        url = "" if replay else required(URL, tool=f"judge {model}")
        chat = Chat(
            f"judge {model}",
            model=model,
            url=url,
            key=os.environ.get(KEY, ""),
            cassette=cassette,
            provider=self.provider,
        )
        return PaidChat(chat, self.price, budget, Component.JUDGE, self.limit_parameter, self.over, SETTING)
